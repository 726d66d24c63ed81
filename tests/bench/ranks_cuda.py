"""ranks_cuda.py - pipelines and replicas on several GPUs: PyTorch against our executables.

usage: ranks_cuda.py [--gpus 2] [--rounds 3] [--steps 20] [--cpu] [--json FILE] NAME=EXECUTABLE...

NAME is what a rank does:
    pipe:8x8   GPT-2 medium in bf16, 8 microbatches of 8 rows of 1024 tokens a step, made with
               -D n_layer=24 -D n_embd=1024 -D n_head=16 -D tied=false -D parallel.pp=2
               -D train.B=8 -D train.microbatches=8
    dp:64      GPT-2 124M in bf16, 64 rows of 1024 tokens a rank, -D parallel.dp=2
    cnn:64     the MNIST CNN in f32, 64 images a rank, -D parallel.dp=2
and perhaps "/" and a word of yours that tells executables of one case apart: dp:64/zero1=build/z1.
PyTorch, in processes of its own: Schedule1F1B and ScheduleInterleaved1F1B with two stages a rank,
stages compiled; DistributedDataParallel, compiled. Ours is `bench --json`, which starts its ranks.
The sides take turns; a figure is the median over rounds; peak memory is rank 0's. --cpu replaces
the GPUs by gloo and the models by tiny ones: it shows that the script works, and no more.
Needs torch, and mpirun for our side.
"""
import argparse, json, os, statistics, subprocess, sys, tempfile, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from lm_cuda import Size, gpt2

OTHER_SIDES = {"pipe": ("1F1B", "interleaved"), "dp": ("DDP",), "cnn": ("DDP",)}


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("executables", nargs="+", metavar="NAME=EXECUTABLE")
    p.add_argument("--gpus", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--cpu", action="store_true", help="tiny models on the CPU")
    p.add_argument("--json", help="also write every figure into this file")
    p.add_argument("--ours-only", action="store_true", help="do not run PyTorch")
    return p.parse_args()


class Case:
    def __init__(self, name, cpu):
        self.kind, shape = name.split("/")[0].split(":")
        sizes = [int(x) for x in shape.split("x")]
        self.microbatches = sizes[0] if self.kind == "pipe" else 1
        self.batch = sizes[-1]
        self.length, self.cpu = 1024, cpu
        if self.kind != "cnn":
            self.size = Size(f"gpt2:{self.batch}x{self.length}")
            if self.kind == "pipe":
                self.size.layers, self.size.width, self.size.heads, self.size.ffn = 24, 1024, 16, 4096
            if cpu:
                self.length = self.size.length = 16
                self.size.layers, self.size.width, self.size.heads, self.size.ffn = 4, 128, 2, 256
                self.size.vocab = 500

    def counted(self, ranks):
        """What a step consumes, and its unit."""
        if self.kind == "cnn":
            return self.batch * ranks, "images"
        rows = self.microbatches * self.batch if self.kind == "pipe" else self.batch * ranks
        return rows * self.length, "tokens"


# ---- PyTorch: one of these in each of its processes, step() is a whole training step


def decayed(torch, model):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1},
                              {"params": others, "weight_decay": 0.0}],
                             lr=1e-4, betas=(0.9, 0.95), fused=True)


def initial(torch, model):
    for p in model.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, std=0.02)
    return model


class Replicas:
    """DistributedDataParallel."""

    def __init__(self, torch, case, device, side):
        self.torch, self.case = torch, case
        torch.manual_seed(1)
        wrap = torch.nn.parallel.DistributedDataParallel
        ids = [device.index] if device.type == "cuda" else None
        if case.kind == "cnn":
            model, rows = self.cnn().to(device), (8, case.batch, 1, 28, 28)
            self.data = torch.rand(rows, device=device)
            self.labels = torch.randint(0, 10, rows[:2], device=device)
            self.opt = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)
        else:
            model = initial(torch, gpt2(case.size).to(device))
            self.data = torch.randint(0, case.size.vocab, (8, case.batch, case.length + 1), device=device)
            self.opt = decayed(torch, model)
        self.model = wrap(model, device_ids=ids, gradient_as_bucket_view=True)
        self.run = self.model if case.cpu else torch.compile(self.model)
        self.at = 0

    def cnn(self):
        nn, F = self.torch.nn, self.torch.nn.functional

        class CNN(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv1, self.conv2 = nn.Conv2d(1, 16, 3), nn.Conv2d(16, 32, 3)
                self.fc = nn.Linear(18432, 10)

            def forward(self, x, y):
                x = F.relu(self.conv2(F.relu(self.conv1(x))))
                return F.cross_entropy(self.fc(x.flatten(1)), y)
        return CNN()

    def step(self):
        torch, batch = self.torch, self.data[self.at % 8]
        if self.case.kind == "cnn":
            loss = self.run(batch, self.labels[self.at % 8])
        else:
            with torch.autocast(batch.device.type, torch.bfloat16):
                loss = self.run(batch[:, :-1], batch[:, 1:])
        loss.backward()
        if self.case.kind != "cnn":
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        self.opt.zero_grad(set_to_none=True)
        self.at += 1


def stage_of(torch, model, first, last, start, end):
    """Blocks [start, end) of a GPT-2, with the embedding or the head where it is an end of it."""

    class Stage(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.h = torch.nn.ModuleList(model.h[start:end])
            if first:
                self.wte, self.wpe = model.wte, model.wpe
            if last:
                self.ln_f = model.ln_f
                self.head = torch.nn.Linear(model.head.in_features, model.head.out_features, bias=False)

        def forward(self, x):
            with torch.autocast(x.device.type, torch.bfloat16):
                if first:
                    x = self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device))
                for block in self.h:
                    x = block(x)
                return self.head(self.ln_f(x)) if last else x
    return Stage()


class Pipeline:
    """torch.distributed.pipelining: one stage a rank, or two."""

    def __init__(self, torch, case, device, side):
        import torch.distributed.pipelining as pipelining
        self.torch, dist = torch, torch.distributed
        rank, ranks = dist.get_rank(), dist.get_world_size()
        each = 2 if side == "interleaved" else 1
        count, layers = each * ranks, case.size.layers
        torch.manual_seed(1)
        whole, stages, self.parts = gpt2(case.size), [], torch.nn.ModuleList()
        for i in range(rank, count, ranks):
            part = stage_of(torch, whole, i == 0, i == count - 1, layers * i // count,
                            layers * (i + 1) // count)
            part = initial(torch, part.to(device))
            self.parts.append(part)
            run = part if case.cpu else torch.compile(part)
            stages.append(pipelining.PipelineStage(run, i, count, device))
        del whole
        vocab = case.size.vocab

        def loss(logits, targets):
            rows = logits.view(-1, logits.shape[-1]).float()
            return torch.nn.functional.cross_entropy(rows, targets.reshape(-1))
        if each == 1:
            self.schedule = pipelining.Schedule1F1B(stages[0], case.microbatches, loss_fn=loss)
        else:
            self.schedule = pipelining.ScheduleInterleaved1F1B(stages, case.microbatches, loss_fn=loss)
        self.opt = decayed(torch, self.parts)
        rows = case.microbatches * case.batch
        self.data = torch.randint(0, vocab, (4, rows, case.length + 1), device=device)
        self.first, self.last, self.at = rank == 0, rank == ranks - 1, 0

    def clip(self):
        """The norm over the parameters of all ranks."""
        torch = self.torch
        grads = [p.grad for p in self.parts.parameters() if p.grad is not None]
        total = torch.stack([n.float() ** 2 for n in torch._foreach_norm(grads)]).sum()
        torch.distributed.all_reduce(total)
        torch._foreach_mul_(grads, torch.clamp(1.0 / (total.sqrt() + 1e-6), max=1.0))

    def step(self):
        batch = self.data[self.at % 4]
        inputs = (batch[:, :-1].contiguous(),) if self.first else ()
        target = {"target": batch[:, 1:].contiguous()} if self.last else {}
        self.schedule.step(*inputs, **target)
        self.clip()
        self.opt.step()
        self.opt.zero_grad(set_to_none=True)
        self.at += 1


def measure(torch, side, steps, device):
    def wait():
        if device.type == "cuda":
            torch.cuda.synchronize()
        torch.distributed.barrier()
    times = []
    for i in range(steps + 1):
        wait()
        begin = time.perf_counter()
        side.step()
        wait()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times[1:])


def worker(rank, ranks, case, name, file, commands, results):
    import torch
    device = torch.device("cpu") if case.cpu else torch.device("cuda", rank)
    if case.cpu:
        torch.set_num_threads(1)
    else:
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = True
    torch.distributed.init_process_group("gloo" if case.cpu else "nccl", rank=rank, world_size=ranks,
                                         init_method=f"file://{file}")
    side = (Pipeline if case.kind == "pipe" else Replicas)(torch, case, device, name)
    for _ in range(2 if case.cpu else 5):
        side.step()
    while True:
        steps = commands[rank].get()
        if steps == 0:
            break
        ms = measure(torch, side, steps, device)
        if rank == 0:
            results.put((ms, 0 if case.cpu else torch.cuda.max_memory_allocated()))
    torch.distributed.destroy_process_group()


class Torch:
    """PyTorch's processes for one case; run(n) gives the median of n steps in ms."""

    def __init__(self, case, name, ranks):
        import torch.multiprocessing as mp
        context = mp.get_context("spawn")
        self.folder = tempfile.TemporaryDirectory()
        self.commands, self.results = [context.Queue() for _ in range(ranks)], context.Queue()
        file = os.path.join(self.folder.name, "meet")
        self.process = [context.Process(target=worker, args=(r, ranks, case, name, file, self.commands,
                                                             self.results)) for r in range(ranks)]
        for p in self.process:
            p.start()
        self.peak = 0

    def run(self, steps):
        for queue in self.commands:
            queue.put(steps)
        while True:
            try:
                ms, self.peak = self.results.get(timeout=5)
                return ms
            except Exception:
                if any(p.exitcode not in (None, 0) for p in self.process):
                    sys.exit("PyTorch's side failed")

    def close(self):
        for queue in self.commands:
            queue.put(0)
        for p in self.process:
            p.join()


def ours(executable, steps):
    out = subprocess.run([executable, "bench", "--steps", str(steps), "--json"], check=True,
                         stdout=subprocess.PIPE, text=True).stdout
    return json.loads(out.strip().splitlines()[-1])


def run_case(a, text):
    name, path = text.split("=", 1)
    case, path = Case(name, a.cpu), os.path.abspath(path)
    sides = {} if a.ours_only else {s: Torch(case, s, a.gpus) for s in OTHER_SIDES[case.kind]}
    rounds = {s: [] for s in [*sides, "infinic"]}
    last = None
    for _ in range(a.rounds):
        for s, side in sides.items():
            rounds[s].append(side.run(a.steps))
        last = ours(path, a.steps)
        rounds["infinic"].append(last["ms_per_step"])
    peaks = {s: side.peak for s, side in sides.items()}
    for side in sides.values():
        side.close()
    return case, rounds, peaks, last


def print_case(a, name, case, rounds, peaks, last):
    median = {s: statistics.median(v) for s, v in rounds.items()}
    best = min((v for s, v in median.items() if s != "infinic"), default=float("nan"))
    count, unit = case.counted(a.gpus)
    for s, v in median.items():
        mine = s == "infinic"
        peak = last["peak_bytes"] if mine else peaks[s]
        more = f" ({last['planned_bytes'] / 1e9:.1f})  {best / v:5.2f} times" if mine else ""
        if mine and "bubble_predicted" in last:
            more += f"  bubble {last['bubble']:.1%}, predicted {last['bubble_predicted']:.1%}"
        print(f"  {name:14s} {s:12s} {v:10.3f} {count / v * 1e3:14.0f} {unit}/s {peak / 1e9:8.1f}{more}",
              flush=True)


def main():
    a = parse()
    print(f"{a.gpus} ranks: ms a step, median of {a.rounds} rounds of {a.steps} steps")
    print("  case           side              ms          rate             peak GB (planned)")
    result = {}
    for text in a.executables:
        name = text.split("=", 1)[0]
        case, rounds, peaks, last = run_case(a, text)
        print_case(a, name, case, rounds, peaks, last)
        result[name] = {"rounds": rounds, "peaks": peaks, "last": last}
    if a.json:
        with open(a.json, "w") as f:
            json.dump(result, f, indent=1)


if __name__ == "__main__":
    main()
