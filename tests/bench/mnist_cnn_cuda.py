"""mnist_cnn_cuda.py - MNIST CNN on a GPU: PyTorch's captured steps against our executables.

usage: mnist_cnn_cuda.py [--rounds 3] [--steps 500] [--data DIR] [--json FILE] NAME=EXECUTABLE...

NAME is f32 or tf32, ":" and the batch: f32:64=build/gpu/cnn64 tf32:1024=build/gpu/cnn1024_tf32.
A step is forward, cross-entropy, backward and SGD on random images. PyTorch's step is one CUDA
graph (the whole step, captured after a warm-up) on f32 or with tf32 convolutions and products; ours
is `bench --steps N --json`, staging the batch included. The sides take turns in one run; a side's
figure is the median over rounds. With --data DIR the batch-64 f32 executable also trains three
epochs. Needs torch with CUDA.
"""
import argparse, json, os, re, statistics, subprocess, time


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("executables", nargs="+", metavar="NAME=EXECUTABLE")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=500)
    p.add_argument("--data")
    p.add_argument("--json", help="also write every figure into this file")
    return p.parse_args()


def torch_step(batch, tf32):
    """One PyTorch step as a captured graph: a function that replays it n times and returns ms."""
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1)
    x = torch.rand(batch, 1, 28, 28, device="cuda")
    y = torch.randint(0, 10, (batch,), device="cuda")

    class CNN(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 16, 3), nn.Conv2d(16, 32, 3)
            self.fc = nn.Linear(18432, 10)

        def forward(self, x):
            return self.fc(F.relu(self.conv2(F.relu(self.conv1(x)))).flatten(1))

    model = CNN().cuda()
    opt = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)

    def step():
        opt.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), y).backward()
        opt.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(11):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    opt.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        step()

    def run(n):
        for _ in range(20):
            graph.replay()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(n):
            graph.replay()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e3 / n
    run.keep = (graph, model, opt, x, y)   # what the graph points to
    return run


def ours(executable, steps):
    out = subprocess.run([executable, "bench", "--steps", str(steps), "--json"], check=True,
                         stdout=subprocess.PIPE, text=True).stdout
    return json.loads(out.strip().splitlines()[-1])["ms_per_step"]


def train_seconds(executable, data):
    begin = time.perf_counter()
    out = subprocess.run([executable, "train", "--data", data, "--epochs", "3", "--quiet"],
                         check=True, stdout=subprocess.PIPE, text=True).stdout
    wall = time.perf_counter() - begin
    accuracy = re.findall(r"accuracy ([0-9.]+)", out)[-1]
    return float(re.search(r"in ([0-9.]+) s", out)[1]), wall, accuracy


def main():
    a = parse()
    sides = {}
    for text in a.executables:
        name, path = text.split("=", 1)
        kind, batch = name.split(":")
        path = os.path.abspath(path)
        sides[name] = (torch_step(int(batch), kind == "tf32"), path)
    rounds = {name: {"torch": [], "infinic": []} for name in sides}
    for _ in range(a.rounds):
        for name, (step, path) in sides.items():
            rounds[name]["torch"].append(step(a.steps))
            rounds[name]["infinic"].append(ours(path, a.steps))
    import torch
    print(f"MNIST CNN on {torch.cuda.get_device_name(0)}, PyTorch {torch.__version__}, one graph a step")
    print("  case          PyTorch ms   ours ms   ratio   ours images/s")
    for name, r in rounds.items():
        t, o = statistics.median(r["torch"]), statistics.median(r["infinic"])
        batch = int(name.split(":")[1])
        print(f"  {name:12s} {t:11.4f} {o:9.4f} {t / o:7.2f} {batch / o * 1e3:15.0f}")
    result = {"rounds": rounds}
    if a.data and "f32:64" in sides:
        runs = [train_seconds(sides["f32:64"][1], a.data) for _ in range(a.rounds)]
        seconds, wall, accuracy = sorted(runs)[len(runs) // 2]
        result["train"] = runs
        print(f"  train, 3 epochs at batch 64, evaluations included: {seconds:.2f} s after start "
              f"({wall:.2f} s with start), accuracy {accuracy}")
    if a.json:
        with open(a.json, "w") as f:
            json.dump(result, f)


main()
