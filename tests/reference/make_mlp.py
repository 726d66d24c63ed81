"""make_mlp.py - reference values of the sigmoid MLP (models/mnist_mlp.it) from PyTorch.

usage: make_mlp.py OUTDIR FASHION_MNIST_DIR     (needs torch, numpy, safetensors; f32 on the CPU)

Writes mnist_mlp.safetensors (initial weights), mnist_mlp.grads.safetensors (gradients of the first
batch), mnist_mlp.loss.txt (loss of each of 200 steps) and mnist_mlp.json (the rest). The recipe is
the CNN's: manual_seed 7, batches of 64 in file order, pixels / 255, SGD with lr 0.05. The same
steps in f64 tell how far f32 rounding alone moves the curve.
"""
import copy, gzip, json, sys
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file

BATCH, STEPS, LR = 64, 200, 0.05


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(784, 30), nn.Linear(30, 10)

    def forward(self, x):
        return self.fc2(torch.sigmoid(self.fc1(x.flatten(1))))


def read_idx(path):
    b = gzip.open(path).read()
    shape = [int.from_bytes(b[4 + 4 * i: 8 + 4 * i], "big") for i in range(b[3])]
    return np.frombuffer(b, np.uint8, offset=4 + 4 * b[3]).reshape(shape)


def images(a):
    return torch.tensor(a.astype(np.float32) / 255.0)


def labels(a):
    return torch.tensor(a.astype(np.int64))


def train(model, xs, ys, dtype, first=None):
    opt = torch.optim.SGD(model.parameters(), lr=LR)
    losses = []
    for i in range(STEPS):
        x, y = images(xs[i * BATCH:(i + 1) * BATCH]).to(dtype), labels(ys[i * BATCH:(i + 1) * BATCH])
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        if i == 0 and first:
            first(logits)
        opt.step()
        losses.append(loss.item())
    return losses


def main(out, data):
    torch.manual_seed(7)
    torch.use_deterministic_algorithms(True)
    model = MLP()
    wide = copy.deepcopy(model).double()
    xs, ys = (read_idx(f"{data}/train-{n}.gz") for n in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    xt, yt = (read_idx(f"{data}/t10k-{n}.gz") for n in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    r = {"torch": torch.__version__}
    save_file({k: v.detach().clone() for k, v in model.named_parameters()}, f"{out}/mnist_mlp.safetensors")

    def first(logits):
        r["logits0"] = logits.detach()[:2].flatten().tolist()
        r["grad_norm0"] = {k: p.grad.norm().item() for k, p in model.named_parameters()}
        save_file({k: p.grad.clone() for k, p in model.named_parameters()}, f"{out}/mnist_mlp.grads.safetensors")

    losses = train(model, xs, ys, torch.float32, first)
    exact = train(wide, xs, ys, torch.float64)
    r["f64_departs_by"] = max(abs(a - b) for a, b in zip(losses, exact))
    with torch.no_grad():
        logits = model(images(xt))
        r["test_loss"] = F.cross_entropy(logits, labels(yt)).item()
        r["test_acc"] = (logits.argmax(1) == labels(yt)).float().mean().item()
    with open(f"{out}/mnist_mlp.loss.txt", "w") as f:
        f.writelines(f"{x!r}\n" for x in losses)
    with open(f"{out}/mnist_mlp.json", "w") as f:
        json.dump(r, f, indent=1)
        f.write("\n")
    print(losses[0], losses[-1], r["f64_departs_by"], r["test_acc"])


main(sys.argv[1], sys.argv[2])
