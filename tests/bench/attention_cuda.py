"""attention_cuda.py - attention's CUDA kernels: right, the same bits twice, and how fast beside PyTorch.

    cc -std=gnu17 -I. -o attention_text tests/bench/attention_text.c LIBRARIES     # see that file
    attention_cuda.py make DIR [--text ./attention_text] [--arch sm_90a]   # no GPU: text to cubins
    attention_cuda.py run DIR [DIR...]                                     # on the GPU; needs torch

`make` needs NVRTC (CUDA_HOME or PyTorch's). `run` checks every case against sums in f64 on fresh random
operands, and times the big ones against scaled_dot_product_attention in the same run: medians over
rounds. FLOPs: 4 B H T S K forward, half of it when causal; 2.5 times that backward.
"""
import ctypes, glob, json, math, os, statistics, subprocess, sys

# dtype B H G T S K causal scale layout; timed ones first
TIMED = ["bf16 64 12 12 1024 1024 64 1 0.125 packed", "bf16 4 32 8 2048 2048 64 1 0.125 packed",
         "bf16 4 16 16 2048 2048 128 1 0.08838834764831845 packed",
         "bf16 16 12 12 1024 1024 64 0 0.125 plain",
         "f32 8 12 12 1024 1024 64 1 0.125 packed"]
CHECKED = ["bf16 2 4 4 333 333 64 1 0.125 packed", "bf16 2 4 2 100 777 64 0 0.125 plain",
           "bf16 2 4 1 200 200 8 1 0.35 plain", "bf16 2 4 2 257 257 40 1 0.16 packed",
           "bf16 2 4 2 500 500 80 1 0.11 packed", "bf16 2 4 2 513 513 128 1 0.09 packed",
           "bf16 2 4 2 300 300 256 1 0.0625 packed", "bf16 1 2 2 1 1 64 1 0.125 packed",
           "bf16 2 4 2 190 190 64 1 -0.2 packed",
           "f32 2 4 2 333 333 64 1 0.125 packed", "f32 2 4 2 100 222 80 0 0.1 plain",
           "f32 2 4 2 129 129 128 1 0.09 packed", "f32 2 4 2 77 77 256 1 0.0625 packed"]


# --- make ---

def nvrtc_compile(lib, source, arch):
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    lib.nvrtcCreateProgram(ctypes.byref(program), source, b"attention.cu", 0, None, None)
    options = [b"--gpu-architecture=" + arch.encode(), b"--fmad=false", b"--std=c++17",
               b"--ptxas-options=-v"]
    rc = lib.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetProgramLog(program, log)
    log = log.value.decode()
    if rc:
        sys.exit(log)
    lib.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetCUBIN(program, cubin)
    for line in log.splitlines():
        if any(w in line for w in ("Used", "spill", "Potential")):
            print("   ", line.strip())
    return cubin.raw


def find_nvrtc():
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    paths = [p for d in ("lib64", "lib") for p in sorted(glob.glob(f"{home}/{d}/libnvrtc.so*"))]
    paths += glob.glob(os.path.join(sys.prefix, "lib/python*/site-packages/nvidia/*/lib/libnvrtc.so.*"))
    return ctypes.CDLL(paths[0])


def make(folder, text, arch, cases):
    os.makedirs(folder, exist_ok=True)
    lib, table = find_nvrtc(), []
    for i, case in enumerate(cases):
        r = subprocess.run([text] + case.split(), check=True, capture_output=True)
        launches = [[int(x) for x in line.split()] for line in r.stderr.decode().splitlines()]
        print(case)
        with open(f"{folder}/{i}.cubin", "wb") as f:
            f.write(nvrtc_compile(lib, r.stdout, arch))
        table.append({"case": case, "file": f"{i}.cubin", "launches": launches})
    json.dump(table, open(f"{folder}/cases.json", "w"))


# --- run ---

class Kernel:
    def __init__(self, cuda, module, name, launch):
        self.cuda, self.launch, self.f = cuda, launch, ctypes.c_void_p()
        check(cuda.cuModuleGetFunction(ctypes.byref(self.f), module, name.encode()))
        check(cuda.cuFuncSetAttribute(self.f, 8, launch[2]))   # dynamic shared bytes

    def __call__(self, *tensors):
        import torch
        values = [ctypes.c_uint64(t.data_ptr()) for t in tensors] + [(ctypes.c_char * 32)()]
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(v) for v in values])
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        check(self.cuda.cuLaunchKernel(self.f, self.launch[0], 1, 1, self.launch[1], 1, 1,
                                       self.launch[2], stream, pointers, None))


def check(rc):
    if rc:
        raise RuntimeError(f"CUDA error {rc}")


def operands(case):
    """q, k, v, dout as [B, H, T, K] views, and the same kind of views for results."""
    import torch
    dtype, b, h, g, t, s, k, causal, scale, layout = case.split()
    b, h, g, t, s, k = (int(x) for x in (b, h, g, t, s, k))
    kind = dict(dtype=torch.float32 if dtype == "f32" else torch.bfloat16, device="cuda")

    def three(make):
        if layout == "packed":
            whole = make(b, t, (h + 2 * g) * k, **kind)
            parts = whole.split([h * k, g * k, g * k], dim=2)
            return [p.view(b, t, n, k).transpose(1, 2) for p, n in zip(parts, (h, g, g))]
        return [make(b, h, t, k, **kind), make(b, g, s, k, **kind), make(b, g, s, k, **kind)]

    def one(make):
        if layout == "packed":
            return make(b, t, h * k, **kind).view(b, t, h, k).transpose(1, 2)
        return make(b, h, t, k, **kind)

    def poison(*shape, **kw):
        return torch.full(shape, float("nan"), **kw)

    return (three(torch.randn), one(torch.randn), one(poison), three(poison),
            torch.full((b, h, t), float("nan"), device="cuda"), causal == "1", float(scale), h // g)


def reference(q, k, v, dout, causal, scale, share):
    import torch
    q, k, v = (x.double().detach().requires_grad_() for x in (q, k, v))
    kk, vv = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
    s = (q @ kk.transpose(-1, -2)) * scale
    if causal:
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -math.inf)
    out = torch.softmax(s, -1) @ vv
    return out.detach(), torch.logsumexp(s, -1).detach(), torch.autograd.grad(out, (q, k, v), dout.double())


def error(x, want):
    return ((x.double() - want).norm() / want.norm().clamp_min(1e-30)).item()


def milliseconds(f, rounds=7, inner=5):
    import torch
    for _ in range(3):
        f()
    times = []
    for _ in range(rounds):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        for _ in range(inner):
            f()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b) / inner)
    return statistics.median(times)


def peers(q, k, v, dout, causal, scale, share):
    """{backend: (forward ms, backward ms)} of PyTorch."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention as sdpa
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    times = {}
    for name in ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION"):
        try:
            with sdpa_kernel(getattr(SDPBackend, name)):
                def forward():
                    return sdpa(q, k, v, is_causal=causal, scale=scale, enable_gqa=share > 1)
                with torch.no_grad():
                    ahead = milliseconds(forward)
                out = forward()
                back = milliseconds(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True))
                times[name.split("_")[0].lower()] = (ahead, back)
        except RuntimeError:
            pass
    return times


def run_case(cuda, folder, row, timed):
    import torch
    module, case = ctypes.c_void_p(), row["case"]
    check(cuda.cuModuleLoadData(ctypes.byref(module), open(f"{folder}/{row['file']}", "rb").read()))
    forward = Kernel(cuda, module, "forward", row["launches"][0])
    backward = Kernel(cuda, module, "backward", row["launches"][1])
    (q, k, v), dout, out, grads, lse, causal, scale, share = operands(case)
    forward(q, k, v, out, lse)
    backward(q, k, v, out, lse, dout, *grads)
    torch.cuda.synchronize()
    first = [x.clone() for x in (out, lse, *grads)]
    for x in (out, lse, *grads):
        x.fill_(float("nan"))
    forward(q, k, v, out, lse)
    backward(q, k, v, out, lse, dout, *grads)
    same = all(torch.equal(a, b) for a, b in zip(first, (out, lse, *grads)))
    part = slice(0, min(2, q.shape[0]))
    want, want_lse, want_grads = reference(q[part], k[part], v[part], dout[part], causal, scale, share)
    errors = [error(out[part], want), (lse[part].double() - want_lse).abs().max().item()]
    errors += [error(x[part], w) for x, w in zip(grads, want_grads)]
    tiny = want_grads[0].abs().max().item() < 1e-6   # one key: the gradients of q and k are 0
    most = 2e-6 if case.startswith("f32") else 1e-2
    good = same and all(e < most or (tiny and i in (2, 3)) for i, e in enumerate(errors))
    print(f"{'ok ' if good else 'BAD'} {case}: out {errors[0]:.1e} lse {errors[1]:.1e} dq {errors[2]:.1e} "
          f"dk {errors[3]:.1e} dv {errors[4]:.1e}{'' if same else ' BITS DIFFER'}")
    if not timed:
        return good
    b, h, t, d = q.shape
    flops = 4 * b * h * t * k.shape[2] * d / (2 if causal else 1)
    ours = (milliseconds(lambda: forward(q, k, v, out, lse)),
            milliseconds(lambda: backward(q, k, v, out, lse, dout, *grads)))
    for name, (a, z) in {"ours": ours, **(peers(q, k, v, dout, causal, scale, share) if timed == 2 else {})}.items():
        print(f"    {name:10} forward {a:7.3f} ms {flops / a / 1e9:6.1f} TFLOP/s, backward {z:7.3f} ms "
              f"{2.5 * flops / z / 1e9:6.1f} TFLOP/s")
    return good


def run(folders):
    import torch
    torch.manual_seed(7)
    torch.zeros(1, device="cuda")
    cuda = ctypes.CDLL("libcuda.so.1")
    good = True
    for i, folder in enumerate(folders):
        print(f"== {folder}")
        for row in json.load(open(f"{folder}/cases.json")):
            try:
                timed = row["case"] in TIMED
                good &= run_case(cuda, folder, row, (2 if i == 0 else 1) if timed else 0)
            except RuntimeError as e:
                print("BAD", row["case"], e)
                good = False
            sys.stdout.flush()
    return good


if __name__ == "__main__":
    arguments = sys.argv[1:]
    option = {"--text": "./attention_text", "--arch": "sm_90a", "--cases": "all"}
    for name in option:
        if name in arguments:
            i = arguments.index(name)
            option[name] = arguments[i + 1]
            del arguments[i:i + 2]
    if len(arguments) == 2 and arguments[0] == "make":
        chosen = {"all": TIMED + CHECKED, "timed": TIMED, "first": TIMED[:1]}[option["--cases"]]
        make(arguments[1], option["--text"], option["--arch"], chosen)
    elif len(arguments) >= 2 and arguments[0] == "run":
        sys.exit(not run(arguments[1:]))
    else:
        sys.exit(__doc__)
