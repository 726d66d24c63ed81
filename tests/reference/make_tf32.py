"""make_tf32.py - gradients of models/mnist_cnn.it with `dtype = tf32`, from PyTorch in f64.

usage: make_tf32.py OUTDIR FASHION_MNIST_DIR     (needs torch, numpy; reads OUTDIR/mnist_cnn.safetensors)

Writes mnist_cnn.tf32.safetensors: gradients of the first batch (fc.weight, the large one, left out)
when both factors of the second convolution's three products are rounded to 10 bits, ties away from
zero, and everything else is exact. The first convolution has one channel and stays f32, as does the
classifier. Prints how far that is from unrounded gradients: 1e-2, since some 95 of 1.2 million
ReLUs end on the other side of zero.
"""
import gzip, json, struct, sys
import numpy as np
import torch
import torch.nn.functional as F

BATCH = 64


def read_weights(path):
    b = open(path, "rb").read()
    n = struct.unpack("<Q", b[:8])[0]
    out = {}
    for name, row in json.loads(b[8:8 + n]).items():
        if name == "__metadata__":
            continue
        begin, end = row["data_offsets"]
        values = np.frombuffer(b[8 + n + begin:8 + n + end], np.float32).reshape(row["shape"])
        out[name] = torch.tensor(values.astype(np.float64))
    return out


def write_weights(path, tensors):
    head, data = {}, b""
    for name, t in tensors.items():
        values = t.to(torch.float32).numpy().tobytes()
        head[name] = {"dtype": "F32", "shape": list(t.shape),
                      "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def first_batch(folder):
    x = gzip.open(folder + "/train-images-idx3-ubyte.gz").read()[16:16 + BATCH * 784]
    y = gzip.open(folder + "/train-labels-idx1-ubyte.gz").read()[8:8 + BATCH]
    x = np.frombuffer(x, np.uint8).astype(np.float32) / 255.0
    return (torch.tensor(x.reshape(BATCH, 1, 28, 28).astype(np.float64)),
            torch.tensor(np.frombuffer(y, np.uint8).astype(np.int64)))


def tf32(t):
    bits = t.to(torch.float32).view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32).to(torch.float64)


def gradients(w, x, y, rounded):
    q = tf32 if rounded else lambda t: t
    a = F.relu(F.conv2d(x, w["conv1.weight"], w["conv1.bias"]))
    b = F.relu(F.conv2d(q(a), q(w["conv2.weight"]), w["conv2.bias"]))
    logits = F.linear(b.flatten(1), w["fc.weight"], w["fc.bias"])
    d = (torch.softmax(logits, 1) - F.one_hot(y, 10)) / BATCH
    db = (d @ w["fc.weight"]).view_as(b) * (b > 0)
    da = torch.nn.grad.conv2d_input(a.shape, q(w["conv2.weight"]), q(db)) * (a > 0)
    return {"conv1.bias": da.sum((0, 2, 3)),
            "conv1.weight": torch.nn.grad.conv2d_weight(x, w["conv1.weight"].shape, da),
            "conv2.bias": db.sum((0, 2, 3)),
            "conv2.weight": torch.nn.grad.conv2d_weight(q(a), w["conv2.weight"].shape, q(db)),
            "fc.bias": d.sum(0)}


def main():
    out, images = sys.argv[1:]
    torch.set_num_threads(1)
    w = read_weights(out + "/mnist_cnn.safetensors")
    x, y = first_batch(images)
    exact, rounded = gradients(w, x, y, False), gradients(w, x, y, True)
    for name in exact:
        distance = (rounded[name] - exact[name]).norm() / exact[name].norm()
        print(f"{name:14s} {distance.item():.1e}")
    write_weights(out + "/mnist_cnn.tf32.safetensors", rounded)


main()
