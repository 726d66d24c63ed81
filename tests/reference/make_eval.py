#!/usr/bin/env python3
"""Writes tests/ir/eval_cases.def: graphs, inputs and PyTorch's results in f64, as literals.

usage: make_eval.py > tests/ir/eval_cases.def        (needs torch; not needed to run the tests)
"""
import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
inf, nan = float("inf"), float("nan")


def T(rows, dtype=torch.float64):
    return torch.tensor(rows, dtype=dtype)


def I(rows):
    return T(rows, torch.int64)


def ramp(*shape, step=0.37, start=-1.3):
    """Numbers without pattern in [-2, 2): reproducible without a generator."""
    n = 1
    for s in shape:
        n *= s
    x = (start + step * torch.arange(n) + 0.11 * torch.arange(n) ** 2) % 4 - 2
    return x.round(decimals=3).reshape(shape)


def number(x):
    x = float(x)
    if x != x or abs(x) == inf:
        return str(x)
    return repr(int(x)) if x == int(x) and abs(x) < 1e15 else repr(x)


def flat(tensors):
    return "|".join(" ".join(number(x) for x in t.reshape(-1).to(torch.float64)) for t in tensors)


def type_of(t):
    dtype = {torch.float64: "f32", torch.int64: "i32", torch.bool: "bool"}[t.dtype]
    return dtype + "[" + ",".join(str(d) for d in t.shape) + "]"


def case(name, body, inputs, outputs):
    """body: lines with results named; its last line lists the outputs."""
    if not isinstance(inputs, (list, tuple)):
        inputs = [inputs]
    if not isinstance(outputs, (list, tuple)):
        outputs = [outputs]
    head = ", ".join(f"%{i}: {type_of(t)}" for i, t in enumerate(inputs))
    text = f"graph f({head}) {{ {body} }}".replace("\\", "\\\\").replace('"', '\\"')
    print(f'CASE({name},\n     "{text}",\n     "{flat(inputs)}",\n     "{flat(outputs)}")')


def one(op, x, y, attrs="", result="", name=None):
    case(name or op, f"%1 = {op} %0{attrs}{result} return %1", x, y)


def two(op, x, y, z):
    case(op, f"%2 = {op} %0, %1 return %2", [x, y], z)


def grad(f, x, dy):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(f(x), x, dy)[0]


print("/* eval_cases.def - CASE(name, graph, inputs, results): tensors separated by '|'. Written by\n"
      " * tests/reference/make_eval.py from PyTorch in f64; edit that instead. */")

x = T([-2.5, -1.0, -0.25, 0.0, 0.5, 3.0, inf, nan])
p = T([0.25, 0.5, 1.0, 2.0, 10.0, 0.0, inf, nan])
s = T([-3.0, -1.0, -0.3, 0.0, 0.3, 0.8, 2.0, 9.0])
one("neg", x, -x)
one("abs", x, x.abs())
one("sign", x, T([-1, -1, -1, 0, 1, 1, 1, nan]))
one("exp", x, x.exp())
one("exp2", x, x.exp2())
one("log", p, p.log())
one("sqrt", p, p.sqrt())
one("rsqrt", p, p.rsqrt())
one("sin", s, s.sin())
one("cos", s, s.cos())
one("tanh", x, x.tanh())
one("erf", x, x.erf())
one("sigmoid", x, x.sigmoid())
one("relu", x, x.relu())
one("silu", s, F.silu(s))
one("gelu", s, F.gelu(s))
one("gelu_tanh", s, F.gelu(s, approximate="tanh"))
one("floor", x, x.floor())
one("not", T([True, False], torch.bool), T([False, True], torch.bool))
one("is_finite", T([1.0, inf, -inf, nan]), T([True, False, False, False], torch.bool))
one("stop_gradient", x, x)
one("copy", x, x)
one("cast", T([-2.7, 2.7, 0.0, 1e10]), T([-2, 2, 0, 2147483647]), result=" : i32[4]", name="cast_to_i32")
one("cast", T([-2.7, 2.7, 0.0, 300.0]), T([0, 2, 0, 255]), result=" : u8[4]", name="cast_to_u8")
one("cast", T([-2.7, 0.0, nan]), T([1, 0, 1]), result=" : bool[3]", name="cast_to_bool")
one("cast", I([-3, 7]), T([-3, 7]), result=" : f32[2]", name="cast_to_f32")

a = T([1.0, -2.0, 3.5, 0.0, nan, 1.0, 2.0])
b = T([2.0, 0.5, 3.5, 4.0, 1.0, nan, -3.0])
two("add", a, b, a + b)
two("sub", a, b, a - b)
two("mul", a, b, a * b)
two("div", a, b, a / b)
two("pow", a, b, a.pow(b))
two("max", a, b, torch.maximum(a, b))
two("min", a, b, torch.minimum(a, b))
for op in ("lt", "le", "gt", "ge", "eq", "ne"):
    two(op, a, b, getattr(torch, op)(a, b))
t, u = T([True, True, False, False], torch.bool), T([True, False, True, False], torch.bool)
two("and", t, u, t & u)
two("or", t, u, t | u)
two("add", I([2147483647, -5]), I([-1, 3]), I([2147483646, -2]))
case("select", "%3 = select %0, %1, %2 return %3", [t, a[:4], b[:4]], torch.where(t, a[:4], b[:4]))

m = ramp(2, 3, 4)
one("reduce_sum", m, m.sum(1), " {axes=[1]}", name="reduce_sum_middle")
one("reduce_sum", m, m.sum((0, 2)), " {axes=[0,2]}", name="reduce_sum_outer")
one("reduce_sum", m, m.sum(), " {axes=[0,1,2]}", name="reduce_sum_all")
one("reduce_max", m, m.amax(2), " {axes=[2]}")
one("reduce_min", m, m.amin((0, 1)), " {axes=[0,1]}")
one("reduce_max", T([[1.0, nan, 2.0], [-inf, -inf, -5.0]]), T([nan, -5.0]), " {axes=[1]}", name="reduce_max_nan")
one("argmax", m, m.argmax(1), " {axis=1}", name="argmax_middle")
one("argmax", T([[3.0, 5.0, 5.0], [1.0, nan, 9.0]]), I([1, 1]), " {axis=1}", name="argmax_first_and_nan")

case("const", "%0 = const {value=-1.5} : f32[2,2] return %0", [], torch.full((2, 2), -1.5))
case("iota", "%0 = iota {axis=1} : i32[2,3] return %0", [], I([[0, 1, 2], [0, 1, 2]]))
one("reshape", m, m, result=" : f32[4,6]")
one("transpose", m, m.permute(2, 0, 1), " {perm=[2,0,1]}")
one("slice", m, m[0:2, 1:3, 0:4:3], " {begin=[0,1,0], end=[2,3,4], step=[1,1,3]}")
case("concat", "%2 = concat %0, %1, %0 {axis=1} return %2", [m, ramp(2, 1, 4)],
     torch.cat([m, ramp(2, 1, 4), m], 1))
one("broadcast", ramp(3, 1), ramp(3, 1).reshape(1, 3, 1).expand(2, 3, 2), " {axes=[1,2]}", " : f32[2,3,2]")
one("broadcast", T(7.0), torch.full((2, 2), 7.0), " {axes=[]}", " : f32[2,2]", name="broadcast_scalar")
one("pad", ramp(2, 2), F.pad(ramp(2, 2), (0, 2, 1, 0), value=9.0), " {low=[1,0], high=[0,2], value=9}")

A, B = ramp(2, 3, 4), ramp(2, 4, 2, step=0.61)
for ta in (0, 1):
    for tb in (0, 1):
        case(f"matmul_{ta}{tb}", f"%2 = matmul %0, %1 {{ta={ta}, tb={tb}}} return %2",
             [A.transpose(1, 2) if ta else A, B.transpose(1, 2) if tb else B], A @ B)

for k, stride, pad, size in (((3, 3), (1, 1), (0, 0), (5, 4)), ((2, 3), (2, 1), (1, 2), (5, 6)),
                             ((1, 1), (3, 2), (0, 0), (4, 5))):
    img, w = ramp(2, 2, *size), ramp(3, 2, *k, step=0.53)
    y = F.conv2d(img, w, stride=stride, padding=pad)
    dy = ramp(*y.shape, step=0.71)
    attrs = f"{{stride=[{stride[0]},{stride[1]}], padding=[{pad[0]},{pad[1]}]}}"
    name = f"{k[0]}x{k[1]}_stride{stride[0]}{stride[1]}"
    case(f"conv2d_{name}", f"%2 = conv2d %0, %1 {attrs} return %2", [img, w], y)
    case(f"conv2d_dx_{name}", f"%2 = conv2d_dx %0, %1 {attrs} : {type_of(img)} return %2", [dy, w],
         grad(lambda v: F.conv2d(v, w, stride=stride, padding=pad), img, dy))
    case(f"conv2d_dw_{name}", f"%2 = conv2d_dw %0, %1 {attrs} : {type_of(w)} return %2", [img, dy],
         grad(lambda v: F.conv2d(img, v, stride=stride, padding=pad), w, dy))

for k, stride, pad in (((2, 2), (2, 2), (0, 0)), ((3, 2), (1, 2), (1, 1))):
    img = ramp(1, 2, 5, 4)
    attrs = f"{{window=[{k[0]},{k[1]}], stride=[{stride[0]},{stride[1]}], padding=[{pad[0]},{pad[1]}]}}"
    name = f"{k[0]}x{k[1]}"
    y, index = F.max_pool2d(img, k, stride, pad, return_indices=True)
    dy = ramp(*y.shape, step=0.71)
    case(f"max_pool2d_{name}", f"%1, %2 = max_pool2d %0 {attrs} return %1, %2", img, [y, index])
    case(f"max_pool2d_dx_{name}", f"%2 = max_pool2d_dx %0, %1 {attrs} : {type_of(img)} return %2",
         [index, dy], grad(lambda v: F.max_pool2d(v, k, stride, pad), img, dy))
    y = F.avg_pool2d(img, k, stride, pad)
    case(f"avg_pool2d_{name}", f"%1 = avg_pool2d %0 {attrs} return %1", img, y)
    case(f"avg_pool2d_dx_{name}", f"%1 = avg_pool2d_dx %0 {attrs} : {type_of(img)} return %1", dy,
         grad(lambda v: F.avg_pool2d(v, k, stride, pad), img, dy))
ties = T([[[[1.0, 1.0], [nan, 1.0]]]])
case("max_pool2d_nan", "%1, %2 = max_pool2d %0 {window=[2,2], stride=[1,1], padding=[1,1]} return %1, %2",
     ties, list(F.max_pool2d(ties, 2, 1, 1, return_indices=True)))

table, index = ramp(4, 3), I([[0, 3], [3, 1]])
case("gather", "%2 = gather %0, %1 return %2", [table, index], table[index])
case("gather_outside", "%2 = gather %0, %1 return %2", [table, I([-1, 4, 2])],
     torch.stack([T([nan] * 3), T([nan] * 3), table[2]]))
dy = ramp(2, 2, 3, step=0.71)
case("gather_dw", "%2 = gather_dw %0, %1 : f32[4,3] return %2", [index, dy],
     grad(lambda v: v[index], table, dy))

old, new = T([[1, 2], [3, 4], [5, 6]]), T([[10, 20], [30, 40]])
case("put", "%3 = put %0, %1, %2 {axis=0} return %3", [old, new, I([1])], torch.cat([old[:1], new]))
old = T([[1, 2, 3], [4, 5, 6]])
case("put_outside", "%3 = put %0, %1, %2 {axis=1} return %3", [old, new, I([2])],
     torch.cat([old[:, :2], new[:, :1]], 1))

one("softmax", m, m.softmax(-1))
one("log_softmax", m, m.log_softmax(-1))
big = T([[1000.0, 1001.0, -inf], [-1e4, -1e4, -1e4]])
one("softmax", big, big.softmax(-1), name="softmax_large")
gamma, beta = ramp(4, step=0.9), ramp(4, step=0.2)
mean, var = m.mean(-1), m.var(-1, unbiased=False)
case("layer_norm", "%3, %4, %5 = layer_norm %0, %1, %2 {eps=1e-05} return %3, %4, %5", [m, gamma, beta],
     [F.layer_norm(m, (4,), gamma, beta, 1e-5), mean, (var + 1e-5).rsqrt()])
far = m + 1e6
case("layer_norm_far", "%3, %4, %5 = layer_norm %0, %1, %2 {eps=1e-05} return %3", [far, gamma, beta],
     F.layer_norm(far - 1e6, (4,), gamma, beta, 1e-5))  # the difference is exact
case("rms_norm", "%2, %3 = rms_norm %0, %1 {eps=1e-06} return %2, %3", [m, gamma],
     [F.rms_norm(m, (4,), gamma, 1e-6), (m.pow(2).mean(-1) + 1e-6).rsqrt()])
angle = ramp(3, 2, step=0.77)


def turn(x, c, s, adjacent):
    """Pairs along the last axis; positions along the second."""
    pairs = x.unflatten(-1, (2, 2) if not adjacent else (-1, 2))
    a, b = (pairs[..., 0, :], pairs[..., 1, :]) if not adjacent else (pairs[..., 0], pairs[..., 1])
    both = a * c - b * s, b * c + a * s
    return torch.stack(both, -1 if adjacent else -2).flatten(-2)


for adjacent in (0, 1):
    for back in (0, 1):
        attrs = "{axis=1, adjacent=%d, back=%d}" % (adjacent, back)
        case(f"rope_{adjacent}{back}", f"%3 = rope %0, %1, %2 {attrs} return %3", [m, angle.cos(), angle.sin()],
             turn(m, angle.cos(), -angle.sin() if back else angle.sin(), adjacent))
target = I([[0, 3, -100], [1, -2147483648, 2]])
kept = torch.where(target < 0, -100, target)
case("cross_entropy", "%2, %3 = cross_entropy %0, %1 {ignore=-100} return %2, %3", [m, target],
     [F.cross_entropy(m.reshape(-1, 4), kept.reshape(-1), reduction="sum"), T(4.0)])
case("cross_entropy_none", "%2, %3 = cross_entropy %0, %1 {ignore=1} return %2, %3",
     [m[0], I([1, 1, 1])], [T(0.0), T(0.0)])
case("cross_entropy_padded", "%2, %3 = cross_entropy %0, %1 {ignore=-100, classes=3} return %2, %3",
     [m, I([[0, 2, -100], [1, -2147483648, 2]])],
     [F.cross_entropy(m[..., :3].reshape(-1, 3), I([0, 2, -100, 1, -100, 2]), reduction="sum"),
      T(4.0)])
case("cross_entropy_outside", "%2, %3 = cross_entropy %0, %1 {ignore=1} return %2, %3",
     [m[0], I([4, 1, 0])], [T(nan), T(2.0)])



def attend(q, k, v, scale, causal):
    wide = [x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v)]
    scores = scale * q @ wide[0].transpose(-1, -2)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).tril() == 0, -inf)
    return scores.softmax(-1) @ wide[1], scores.logsumexp(-1)


for name, heads, groups, queries, keys, width, causal in (
        ("attention", 2, 2, 3, 4, 2, 0), ("attention_causal", 2, 1, 3, 3, 3, 1)):
    q, k, v = ramp(1, heads, queries, 2), ramp(1, groups, keys, 2, step=0.61), ramp(1, groups, keys, width, step=0.83)
    out, lse = attend(q, k, v, 0.7, causal)
    attrs = "{causal=%d, scale=0.7}" % causal
    case(name, f"%3, %4 = attention %0, %1, %2 {attrs} return %3, %4", [q, k, v], [out, lse])
    dout = ramp(*out.shape, step=0.57)
    free = [x.clone().requires_grad_() for x in (q, k, v)]
    case(name + "_grad", f"%6, %7, %8 = attention_grad %0, %1, %2, %3, %4, %5 {attrs} return %6, %7, %8",
         [q, k, v, out, lse, dout], list(torch.autograd.grad(attend(*free, 0.7, causal)[0], free, dout)))

h, w, c, st = ramp(2, 3), ramp(2, 3, 3, step=0.53) / 2, ramp(3), ramp(2, 3, step=0.3)
body = ("%4, %5 = repeat %0, %1, %2, %3 {count=2, ncarry=1, nconst=1, reverse=REV} { "
        "graph(%0: f32[2,3], %1: f32[3], %2: f32[3,3], %3: f32[3]) { "
        "%4 = matmul %0, %2 {ta=0, tb=1} %5 = broadcast %1 {axes=[1]} : f32[2,3] %6 = add %4, %5 "
        "%7 = broadcast %3 {axes=[1]} : f32[2,3] %8 = mul %6, %7 %9 = reduce_sum %8 {axes=[0]} "
        "return %8, %9 } } return %4, %5")
for reverse in (0, 1):
    v, sums = h, [None, None]
    for i in (1, 0) if reverse else (0, 1):
        v = (v @ w[i].T + c) * st[i]
        sums[i] = v.sum(0)
    case(f"repeat_reverse{reverse}", body.replace("REV", str(reverse)), [h, c, w, st], [v, torch.stack(sums)])
case("kernel", '%2, %3, %4 = kernel %0, %1 {name="k", form="map", workspace=3} { graph(%0: f32[2,3], %1: f32[2,3]) { '
     "%2 = add %0, %1 %3 = relu %2 return %2, %3 } } return %3, %2, %4", [h, st],
     [(h + st).relu(), h + st, torch.zeros(3)])
