"""mnist_cnn_cpu.py - MNIST CNN on the CPU: PyTorch eager and compiled against our executable.

usage: mnist_cnn_cpu.py [--threads 2] [--rounds 5] [--steps 60] [--json] [EXECUTABLE]

A step is forward, cross-entropy, backward and SGD on a batch of 64 random images. The sides take
turns in one run, so that a change of the machine's speed meets all alike; each round gives the
median of its steps (EXECUTABLE: `bench --steps N --json`, its ms_per_step) and the figure of a
side is the median over rounds. The ratio is the faster PyTorch over ours. Without EXECUTABLE only
PyTorch is measured. Needs torch; nothing else of the project does.
"""
import argparse, json, os, statistics, subprocess, sys, time

BATCH = 64


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("executable", nargs="?")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--json", action="store_true", help="one line of JSON instead of a table")
    return p.parse_args()


def torch_sides(threads):
    """Returns {name: function that does one step}."""
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    x = torch.rand(BATCH, 1, 28, 28)
    y = torch.randint(0, 10, (BATCH,))

    class CNN(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 16, 3), nn.Conv2d(16, 32, 3)
            self.fc = nn.Linear(18432, 10)

        def forward(self, x):
            return self.fc(F.relu(self.conv2(F.relu(self.conv1(x)))).flatten(1))

    def side(compiled):
        model = CNN()
        opt = torch.optim.SGD(model.parameters(), lr=0.01)
        loss_of = lambda x, y: F.cross_entropy(model(x), y)
        if compiled:
            loss_of = torch.compile(loss_of)

        def step():
            opt.zero_grad()
            loss_of(x, y).backward()
            opt.step()
        return step

    return torch.__version__, {"PyTorch eager": side(False), "PyTorch compiled": side(True)}


def median_ms(step, n):
    times = []
    for _ in range(n):
        t = time.perf_counter()
        step()
        times.append((time.perf_counter() - t) * 1e3)
    return statistics.median(times)


def ours_ms(executable, threads, n):
    env = dict(os.environ, OMP_NUM_THREADS=str(threads))
    out = subprocess.run([executable, "bench", "--steps", str(n), "--json"], env=env, check=True,
                         stdout=subprocess.PIPE, text=True).stdout
    return json.loads(out.strip().splitlines()[-1])["ms_per_step"]


def main():
    a = parse()
    version, sides = torch_sides(a.threads)
    for name, step in list(sides.items()):
        try:
            median_ms(step, 10)  # warm-up; compiles
        except Exception as e:   # torch.compile needs a C++ compiler
            print(f"{name} left out: {e}", file=sys.stderr)
            del sides[name]
    runs = {name: (lambda step=step: median_ms(step, a.steps)) for name, step in sides.items()}
    if a.executable:
        path = os.path.abspath(a.executable)
        runs["infinic"] = lambda: ours_ms(path, a.threads, a.steps)
    rounds = {name: [] for name in runs}
    for _ in range(a.rounds):
        for name, run in runs.items():
            rounds[name].append(run())
    ms = {name: statistics.median(v) for name, v in rounds.items()}
    result = {"threads": a.threads, "batch": BATCH, "torch": version, "ms_per_step": ms}
    if a.executable:
        result["ratio"] = min(ms[s] for s in sides) / ms["infinic"]
    if a.json:
        print(json.dumps(result))
        return
    print(f"MNIST CNN, batch {BATCH}, {a.threads} threads, PyTorch {version}")
    for name, v in ms.items():
        print(f"  {name:18s} {v:8.3f} ms a step  {BATCH / v * 1e3:8.0f} images/s   rounds "
              + " ".join(f"{r:.3f}" for r in rounds[name]))
    if a.executable:
        print(f"  ratio: {result['ratio']:.2f} times the faster PyTorch")


main()
