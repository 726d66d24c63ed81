"""gpt2_cpu.py - GPT-2 124M on the CPU in f32: PyTorch eager and compiled against our executable.

usage: gpt2_cpu.py [--threads 2] [--rounds 3] [--steps 4] [--no-compile] [--json] [EXECUTABLE]

A step is forward, cross-entropy, backward, clipping and AdamW on a batch of 4 rows of 64 random
tokens. EXECUTABLE is made by
    infinic models/gpt2.it --target=cpu -o gpt2 -D train.B=4 -D train.T=64 -D train.microbatches=1
        -D train.dtype=f32 -D eval.B=4
The sides take turns in one run; each round gives the median of its steps (EXECUTABLE: `bench
--steps N --json`) and the figure of a side is the median over rounds. The ratio is the faster
PyTorch over ours. Needs torch, and a machine that nobody else uses; nothing else of the project does.
"""
import argparse, json, os, statistics, subprocess, sys, time

BATCH, LENGTH, WIDTH, HEADS, LAYERS, VOCABULARY, CONTEXT = 4, 64, 768, 12, 12, 50257, 1024


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("executable", nargs="?")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=4)
    p.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    p.add_argument("--json", action="store_true", help="one line of JSON instead of a table")
    return p.parse_args()


def torch_sides(threads, compiled):
    """Returns {name: function that does one step}."""
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    x = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    y = torch.randint(0, VOCABULARY, (BATCH, LENGTH))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.c_fc, self.c_out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            B, T, D = x.shape
            q, k, v = (z.view(B, T, HEADS, D // HEADS).transpose(1, 2)
                       for z in self.c_attn(self.ln_1(x)).split(D, dim=2))
            z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.c_proj(z.transpose(1, 2).reshape(B, T, D))
            return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))

    class GPT2(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
            self.h = nn.ModuleList(Block() for _ in range(LAYERS))
            self.ln_f = nn.LayerNorm(WIDTH)

        def forward(self, x):
            z = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
            for block in self.h:
                z = block(z)
            return self.ln_f(z) @ self.wte.weight.T

    def side(compiled):
        model = GPT2()
        nn.init.normal_(model.wte.weight, std=0.02)
        decay = [p for p in model.parameters() if p.dim() >= 2]
        plain = [p for p in model.parameters() if p.dim() < 2]
        opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1},
                                 {"params": plain, "weight_decay": 0.0}],
                                lr=6e-4, betas=(0.9, 0.95), fused=True)
        loss_of = lambda x, y: F.cross_entropy(model(x).view(-1, VOCABULARY), y.view(-1))
        if compiled:
            loss_of = torch.compile(loss_of)

        def step():
            opt.zero_grad()
            loss_of(x, y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
        return step

    sides = {"PyTorch eager": side(False)}
    if compiled:
        sides["PyTorch compiled"] = side(True)
    return torch.__version__, sides


def median_ms(step, n):
    times = []
    for _ in range(n):
        t = time.perf_counter()
        step()
        times.append((time.perf_counter() - t) * 1e3)
    return statistics.median(times)


def ours_ms(executable, threads, steps):
    command = [executable, "bench", "--steps", str(steps), "--threads", str(threads), "--json"]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(out.strip().splitlines()[-1])["ms_per_step"]


def main():
    a = parse()
    version, sides = torch_sides(a.threads, not a.no_compile)
    for name, step in list(sides.items()):
        try:
            median_ms(step, 2)  # warm-up; compiles
        except Exception as e:  # torch.compile needs a C++ compiler
            print(f"{name} left out: {e}", file=sys.stderr)
            del sides[name]
    runs = {name: (lambda step=step: median_ms(step, a.steps))
            for name, step in sides.items()}
    if a.executable:
        path = os.path.abspath(a.executable)
        runs["infinic"] = lambda: ours_ms(path, a.threads, a.steps)
    rounds = {name: [] for name in runs}
    for _ in range(a.rounds):
        for name, run in runs.items():
            rounds[name].append(run())
    ms = {name: statistics.median(v) for name, v in rounds.items()}
    result = {"threads": a.threads, "batch": BATCH, "length": LENGTH, "torch": version,
              "ms_per_step": ms}
    if a.executable:
        result["ratio"] = min(ms[s] for s in sides) / ms["infinic"]
    if a.json:
        print(json.dumps(result))
        return
    print(f"GPT-2 124M, {BATCH} x {LENGTH} tokens, {a.threads} threads, PyTorch {version}")
    for name, v in ms.items():
        print(f"  {name:18s} {v:9.1f} ms a step  {BATCH * LENGTH / v * 1e3:7.1f} tokens/s   rounds "
              + " ".join(f"{r:.0f}" for r in rounds[name]))
    if a.executable:
        print(f"  ratio: {result['ratio']:.2f} times the faster PyTorch")


main()
