#!/usr/bin/env python3
"""Write tests/frontend/functions_cases.def: expressions of the language with PyTorch's values.

usage: make_functions.py > tests/frontend/functions_cases.def        (needs torch; f64, CPU)

Inputs are made by `fill` below and, alike, by tests/frontend/functions_test.c.
"""
import json
import math

import torch
import torch.nn.functional as F

B, T, D, H, G, K = 2, 3, 6, 4, 2, 4


def fill(seed, *shape):
    n = math.prod(shape)
    values = [((k * 7919 + seed * 104729 + 13) % 2001 - 1000) / 500.0 for k in range(n)]
    return torch.tensor(values, dtype=torch.float64).reshape(shape)


x, y = fill(1, B, T, D), fill(2, B, T, D)
p, g, v = fill(3, B, H, T, K), fill(4, B, G, T, K), fill(5, B, G, T, K)
img = fill(6, B, 2, 5, 5)
c = torch.tensor([[k * 5 % D for k in range(T)], [(k * 7 + 2) % D for k in range(T)]])


def attend(q, k, val, causal, scale=None):
    return F.scaled_dot_product_attention(q, k.repeat_interleave(H // G, 1), val.repeat_interleave(H // G, 1),
                                          is_causal=causal, scale=scale)


def llama3(inverse, factor, original, low=1.0, high=4.0):
    """Of Hugging Face transformers, _compute_llama3_parameters, in its own steps."""
    wavelength = 2 * torch.pi / inverse
    scaled = torch.where(wavelength > original / low, inverse / factor, inverse)
    smooth = (original / wavelength - low) / (high - low)
    blend = (1 - smooth) * scaled / factor + smooth * scaled
    medium = ~(wavelength < original / high) * ~(wavelength > original / low)
    return torch.where(medium, blend, scaled)


def rope(t, theta, style, scaling=1.0, original=None):
    length, size = t.shape[-2], t.shape[-1]
    inverse = theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    if original:
        inverse, scaling = llama3(inverse, scaling, original), 1.0
    angle = torch.outer(torch.arange(length, dtype=torch.float64) / scaling, inverse)
    if style == "interleaved":
        turned = torch.view_as_complex(t.reshape(*t.shape[:-1], -1, 2).contiguous()) * torch.polar(torch.ones_like(angle), angle)
        return torch.view_as_real(turned).flatten(-2)
    cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)
    a, b = t[..., :size // 2], t[..., size // 2:]
    return t * cos + torch.cat([-b, a], -1) * sin


def topk(logits, target, k):
    hit = (logits.topk(k, -1).indices == target[..., None]).any(-1)
    return hit.double().mean()


logits = x.reshape(-1, D)
cases = [
    ("relu(x)", x.relu()), ("silu(x)", F.silu(x)), ("sigmoid(x)", x.sigmoid()), ("tanh(x)", x.tanh()),
    ("exp(x)", x.exp()), ("log(abs(x) + 1)", (x.abs() + 1).log()), ("sqrt(x * x + 1)", (x * x + 1).sqrt()),
    ("rsqrt(x ^ 2 + 1)", (x * x + 1).rsqrt()), ("gelu(x)", F.gelu(x)),
    ("gelu(x, tanh = true)", F.gelu(x, approximate="tanh")),
    ("min(x, y)", torch.minimum(x, y)), ("max(x, 0.25)", x.clamp(min=0.25)),
    ("where(x > y, x, 0)", torch.where(x > y, x, 0.0)), ("where(not (x <= 0.5), 1, 2)", torch.where(x > 0.5, 1.0, 2.0)),
    ("2 - x / (1 + y * y)", 2 - x / (1 + y * y)), ("x + rearrange(y, [B, T, D] -> [B, T, D]) * -1", x - y),
    ("x * slice(y, 1, 0, 1)", x * y[:, :1]),
    ("max(x, axis = 1)", x.amax(1)), ("min(x, axis = (0, 2), keep = true)", x.amin((0, 2), keepdim=True)),
    ("sum(x, axis = -1)", x.sum(-1)), ("mean(x, axis = (0, 1))", x.mean((0, 1))), ("mean(x)", x.mean()),
    ("var(x, axis = -1)", x.var(-1)), ("var(x + 10000, axis = (1, 2), keep = true, correction = 0)",
                                       (x + 10000).var((1, 2), keepdim=True, correction=0)),
    ("softmax(x)", x.softmax(-1)), ("softmax(x, axis = 1)", x.softmax(1)), ("log_softmax(x, axis = 0)", x.log_softmax(0)),
    ("flatten(x, 1)", x.flatten(1)), ("reshape(x, (-1, 4))", x.reshape(-1, 4)), ("transpose(x)", x.mT),
    ("transpose(x, 0, 2)", x.transpose(0, 2)), ("split(x, 3)[1]", x.chunk(3, -1)[1]),
    ("split(x, 3, axis = 1)[2]", x.chunk(3, 1)[2]), ("concat([x, y, x])", torch.cat([x, y, x], -1)),
    ("concat([x, y], axis = 0)", torch.cat([x, y], 0)), ("slice(x, -1, 1, -1, step = 2)", x[..., 1:-1:2]),
    ("pad(x, axis = 1, low = 1, high = 2, value = 7)", F.pad(x, (0, 0, 1, 2), value=7)),
    ("cast(arange(T), f32) * 2", torch.arange(T).double() * 2), ("one_hot(c, D)", F.one_hot(c, D)),
    ("gather(transpose(mean(x, axis = 0)), c)", x.mean(0).mT[c]),
    ("matmul(x, transpose(y))", x @ y.mT), ("x @ slice(transpose(mean(y, axis = 0)), 0, 0, 6)", x @ y.mean(0).mT),
    ("rearrange(x, [B, T, (P Q)] -> [T, (Q B), 1, P])",
     x.reshape(B, T, 2, 3).permute(1, 3, 0, 2).reshape(T, 3 * B, 1, 2)),
    ("x |> rearrange([B, T, (n P)] -> [n, (B P), T])", x.reshape(B, T, 3, 2).permute(2, 0, 3, 1).reshape(3, B * 2, T)),
    ('einsum("btd,bsd->bts", x, y)', torch.einsum("btd,bsd->bts", x, y)),
    ('einsum("btd,bte->deb", x, y)', torch.einsum("btd,bte->deb", x, y)),
    ('einsum("btd,bsd->s", x, y)', torch.einsum("btd,bsd->s", x, y)),
    ('einsum("btd->dt", x)', torch.einsum("btd->dt", x)), ('einsum("btd,s->tsd", x, mean(y, axis = (0, 1)))',
                                                            torch.einsum("btd,s->tsd", x, y.mean((0, 1)))),
    ("attention(p, g, v)", attend(p, g, v, False)), ("attention(p, g, v, causal = true)", attend(p, g, v, True)),
    ("attention(p, p, p, causal = true, scale = 0.3)",
     F.scaled_dot_product_attention(p, p, p, is_causal=True, scale=0.3)),
    ('rope(p, 10000, style = "half")', rope(p, 10000.0, "half")),
    ('rope(p, 5e5, style = "interleaved", scaling = 4)', rope(p, 5e5, "interleaved", 4.0)),
    ('rope(p, 10, style = "half", scaling = 8, original = 16)', rope(p, 10.0, "half", 8.0, 16)),
    ('rope(p, 10, style = "half", scaling = 8, original = 64)', rope(p, 10.0, "half", 8.0, 64)),
    ("cross_entropy(x, c)", F.cross_entropy(logits, c.flatten())),
    ("cross_entropy(x, where(c > 3, c * 0 - 1, c), ignore = -1)",
     F.cross_entropy(logits, torch.where(c > 3, -1, c).flatten(), ignore_index=-1)),
    ("mse(x, y)", F.mse_loss(x, y)), ("accuracy(x, c)", (x.argmax(-1) == c).double().mean()),
    ("topk(x, c, 2)", topk(x, c, 2)), ("topk(x, c, 5)", topk(x, c, 5)), ("dropout(x, 0.5)", x),
    ("img |> pool", F.max_pool2d(img, 2)), ("img |> pool3", F.max_pool2d(img, 3, stride=1, padding=1)),
    ("img |> mean_pool", F.avg_pool2d(img, (2, 3), stride=(2, 1))),
]
print("/* functions_cases.def - made by tests/reference/make_functions.py with PyTorch; do not edit.\n"
      " * CASE(expression, rank, {dims}, {values}) */")
for text, value in cases:
    value = value.double()
    dims = ", ".join(str(d) for d in value.shape) or "1"
    numbers = ", ".join(repr(n) for n in value.flatten().tolist())
    row = f"CASE({json.dumps(text)}, {value.dim()}, ({dims}), ({numbers}))"
    line = ""
    for word in row.split(" "):
        if len(line) + len(word) + 1 > 100:
            print(line)
            line = "    " + word
        else:
            line = word if not line else line + " " + word
    print(line)
