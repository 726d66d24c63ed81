"""lm_cuda.py - GPT-2 and LLaMA in bf16 on a GPU: PyTorch against our executables.

usage: lm_cuda.py [--rounds 3] [--steps 20] [--json FILE] NAME=EXECUTABLE...

NAME is gpt2 or llama, ":" and batch x length: gpt2:64x1024=build/gpu/gpt2_64 llama:4x2048=build/gpu/llama.
gpt2 is the 124M model, llama the tied 1.24B one. A step is forward, cross-entropy, backward, clipping
by the global norm, AdamW. PyTorch: torch.compile, bf16 autocast over f32 weights, flash attention
through scaled_dot_product_attention, fused AdamW, padded vocabulary. Ours is `bench --json`, random
tokens on both sides. The sides take turns; a figure is the median over rounds. Needs torch with CUDA.
"""
import argparse, json, os, statistics, subprocess, time

PEAK = {"H100": 989e12, "H200": 989e12, "A100": 312e12}


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("executables", nargs="+", metavar="NAME=EXECUTABLE")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--json", help="also write every figure into this file")
    p.add_argument("--ours-only", action="store_true", help="do not run PyTorch")
    return p.parse_args()


class Size:
    def __init__(self, name):
        kind, shape = name.split(":")
        self.kind = kind
        self.batch, self.length = (int(x) for x in shape.split("x"))
        self.layers, self.width, self.heads, self.groups, self.head, self.ffn, self.vocab, self.params = {
            "gpt2": (12, 768, 12, 12, 64, 3072, 50257, 124439808),
            "llama": (16, 2048, 32, 8, 64, 8192, 128256, 1235814400)}[kind]
        self.tokens = self.batch * self.length

    def flops(self):
        """Of a training step: 6 N T + 6 L C T^2 (causal attention)."""
        return (6 * self.params + 6 * self.layers * self.heads * self.head * self.length) * self.tokens


def gpt2(s):
    import torch.nn as nn
    import torch.nn.functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(s.width), nn.LayerNorm(s.width)
            self.c_attn, self.c_proj = nn.Linear(s.width, 3 * s.width), nn.Linear(s.width, s.width)
            self.c_fc, self.c_out = nn.Linear(s.width, s.ffn), nn.Linear(s.ffn, s.width)

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = (y.view(b, t, s.heads, s.head).transpose(1, 2)
                       for y in self.c_attn(self.ln_1(x)).split(s.width, 2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, c))
            return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            rows = (s.vocab + 127) // 128 * 128
            self.wte, self.wpe = nn.Embedding(rows, s.width), nn.Embedding(1024, s.width)
            self.h = nn.ModuleList(Block() for _ in range(s.layers))
            self.ln_f = nn.LayerNorm(s.width)
            self.head = nn.Linear(s.width, rows, bias=False)
            self.head.weight = self.wte.weight

        def forward(self, tokens, targets):
            import torch
            x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
            for block in self.h:
                x = block(x)
            logits = self.head(self.ln_f(x))
            return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))
    return Model()


def llama(s):
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2 = nn.RMSNorm(s.width, 1e-5), nn.RMSNorm(s.width, 1e-5)
            self.q, self.o = (nn.Linear(s.width, s.width, bias=False) for _ in range(2))
            self.k, self.v = (nn.Linear(s.width, s.groups * s.head, bias=False) for _ in range(2))
            self.gate, self.up = (nn.Linear(s.width, s.ffn, bias=False) for _ in range(2))
            self.down = nn.Linear(s.ffn, s.width, bias=False)

        def forward(self, x, cos, sin):
            b, t, c = x.shape
            y = self.n1(x)
            q = self.q(y).view(b, t, s.heads, s.head).transpose(1, 2)
            k = self.k(y).view(b, t, s.groups, s.head).transpose(1, 2)
            v = self.v(y).view(b, t, s.groups, s.head).transpose(1, 2)

            def turn(z):
                a, d = z.chunk(2, -1)
                return z * cos + torch.cat((-d, a), -1) * sin
            y = F.scaled_dot_product_attention(turn(q).to(v.dtype), turn(k).to(v.dtype), v,
                                               is_causal=True, enable_gqa=True)
            x = x + self.o(y.transpose(1, 2).reshape(b, t, c))
            y = self.n2(x)
            return x + self.down(F.silu(self.gate(y)) * self.up(y))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(s.vocab, s.width)
            self.h = nn.ModuleList(Block() for _ in range(s.layers))
            self.norm = nn.RMSNorm(s.width, 1e-5)
            self.head = nn.Linear(s.width, s.vocab, bias=False)
            self.head.weight = self.emb.weight

        def forward(self, tokens, targets):
            t = tokens.shape[1]
            angle = torch.outer(torch.arange(t, device=tokens.device),
                                5e5 ** (-torch.arange(0, s.head, 2, device=tokens.device) / s.head))
            angle = torch.cat((angle, angle), -1)
            cos, sin = angle.cos(), angle.sin()
            x = self.emb(tokens)
            for block in self.h:
                x = block(x, cos, sin)
            logits = self.head(self.norm(x))
            return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))
    return Model()


class Torch:
    """One compiled training step; run(n) gives its median in ms."""

    def __init__(self, s):
        import torch
        torch.manual_seed(1)
        torch.cuda.reset_peak_memory_stats()
        torch.backends.cuda.matmul.allow_tf32 = True
        self.torch = torch
        with torch.device("cuda"):
            self.model = {"gpt2": gpt2, "llama": llama}[s.kind](s)
        for p in self.model.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=0.02)
        matrices = [p for p in self.model.parameters() if p.dim() > 1]
        others = [p for p in self.model.parameters() if p.dim() < 2]
        self.opt = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1},
                                      {"params": others, "weight_decay": 0.0}],
                                     lr=1e-4, betas=(0.9, 0.95), fused=True)
        self.compiled = torch.compile(self.model)
        self.data = torch.randint(0, s.vocab, (8, s.batch, s.length + 1), device="cuda")
        self.at = 0
        for _ in range(5):
            self.step()
        torch.cuda.synchronize()
        self.peak = torch.cuda.max_memory_allocated()

    def step(self):
        torch = self.torch
        batch = self.data[self.at % 8]
        self.at += 1
        with torch.autocast("cuda", torch.bfloat16):
            loss = self.compiled(batch[:, :-1], batch[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        self.opt.zero_grad(set_to_none=True)

    def run(self, n):
        torch = self.torch
        self.step()
        torch.cuda.synchronize()
        times = []
        for _ in range(n):
            begin = time.perf_counter()
            self.step()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - begin) * 1e3)
        return statistics.median(times)

    def close(self):
        del self.model, self.opt, self.compiled, self.data
        self.torch.cuda.empty_cache()
        self.torch._dynamo.reset()


def ours(executable, steps):
    out = subprocess.run([executable, "bench", "--steps", str(steps), "--json"], check=True,
                         stdout=subprocess.PIPE, text=True).stdout
    return json.loads(out.strip().splitlines()[-1])


def peak_flops():
    try:
        name = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
                              stdout=subprocess.PIPE, text=True).stdout.strip()
    except OSError:
        name = ""
    return name, next((v for k, v in PEAK.items() if k in name), None)


def main():
    a = parse()
    name, peak = peak_flops()
    print(f"{name}: ms a step, median of {a.rounds} rounds of {a.steps} steps")
    print("  case              PyTorch      ours   ratio   ours tok/s    MFU   peak GB: PyTorch  ours  (planned)")
    result = {}
    for text in a.executables:
        case, path = text.split("=", 1)
        s, path = Size(case), os.path.abspath(path)
        side = None if a.ours_only else Torch(s)
        torch_ms, our_ms, last = [], [], None
        for _ in range(a.rounds):
            if side:
                torch_ms.append(side.run(a.steps))
            last = ours(path, a.steps)
            our_ms.append(last["ms_per_step"])
        t, o = statistics.median(torch_ms) if torch_ms else float("nan"), statistics.median(our_ms)
        mfu = f"{s.flops() / (o / 1e3) / peak:6.1%}" if peak else "     -"
        print(f"  {case:16s} {t:9.2f} {o:9.2f} {t / o:7.2f} {s.tokens / o * 1e3:12.0f} {mfu}  "
              f"{(side.peak if side else 0) / 1e9:17.1f} {last['peak_bytes'] / 1e9:5.1f} "
              f"({last['planned_bytes'] / 1e9:.1f})", flush=True)
        result[case] = {"torch": torch_ms, "infinic": our_ms, "last": last}
        if side:
            side.close()
    if a.json:
        with open(a.json, "w") as f:
            json.dump(result, f, indent=1)


if __name__ == "__main__":
    main()
