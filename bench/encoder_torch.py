#!/usr/bin/env python3
"""The layers of b_encoder in PyTorch, to hold beside it: the same shapes and numbers of layers, random weights, all rows at once.

encoder_torch.py [--threads 2] [--turns 3] [--name PART] [--type float32,bfloat16] [--b-encoder PROGRAM]

With --b-encoder both take turns, PyTorch first, and each pair's ratio is printed. One layer is measured and counts as many times as there are.
"""
import argparse
import re
import statistics
import subprocess
import time

import torch
import torch.nn.functional as F

#            name                         form      layers rows  width inner heads
GEOMETRIES = [("SigLIP 896 x 896", "siglip", 27, 4096, 1152, 4304, 16),
              ("Gemma 4 small, 280 tokens", "gemma4", 16, 2520, 768, 3072, 12),
              ("Gemma 4 large, 280 tokens", "gemma4", 27, 2520, 1152, 4304, 16),
              ("Llama 3.2 Vision, 4 tiles", "mllama", 40, 6432, 1280, 5120, 16)]


class Layer:
    def __init__(self, form, rows, width, inner, heads, dtype):
        def matrix(rows, cols):
            return (torch.rand(rows, cols) - 0.5).mul(3 / cols**0.5).to(dtype)

        self.form, self.heads = form, heads
        self.x = (torch.rand(rows, width) - 0.5).to(dtype)
        self.q, self.k, self.v, self.o = (matrix(width, width) for _ in range(4))
        self.up, self.gate, self.down = matrix(inner, width), matrix(inner, width), matrix(width, inner)
        self.bias, self.bias_inner = torch.rand(width).to(dtype), torch.rand(inner).to(dtype)
        self.norm_head = torch.rand(width // heads).to(dtype)
        angle = torch.rand(rows, 1, width // heads // 4)
        self.cos, self.sin = angle.cos().to(dtype), angle.sin().to(dtype)

    def norm(self, x):
        if self.form == "gemma4":
            return F.rms_norm(x, x.shape[-1:], self.bias, 1e-6)
        return F.layer_norm(x, x.shape[-1:], self.bias, self.bias, 1e-6)

    def rope(self, x):  # each half of a head by the rotate-half rule
        parts = x.chunk(4, -1)
        turned = [a * self.cos - b * self.sin if i == 0 else b * self.cos + a * self.sin
                  for a, b in (parts[:2], parts[2:]) for i in range(2)]
        return torch.cat(turned, -1)

    def attention(self, h):
        bias = self.bias if self.form == "siglip" else None
        q, k, v = (F.linear(h, w, bias).view(h.shape[0], self.heads, -1) for w in (self.q, self.k, self.v))
        if self.form == "gemma4":
            size = self.norm_head.shape
            q, k = self.rope(F.rms_norm(q, size, self.norm_head, 1e-6)), self.rope(F.rms_norm(k, size, self.norm_head, 1e-6))
            v = F.rms_norm(v, size, None, 1e-6)
        out = F.scaled_dot_product_attention(*(t.transpose(0, 1).unsqueeze(0) for t in (q, k, v)))
        return F.linear(out[0].transpose(0, 1).reshape(h.shape), self.o, bias)

    def run(self):
        x = self.x
        h = self.attention(self.norm(x))
        if self.form == "gemma4":
            x = x + self.norm(h)
            h = self.norm(x)
            h = F.linear(F.gelu(F.linear(h, self.gate), approximate="tanh") * F.linear(h, self.up), self.down)
            return x + self.norm(h)
        x = x + h
        h = F.gelu(F.linear(self.norm(x), self.up, self.bias_inner), approximate="tanh" if self.form == "siglip" else "none")
        return x + F.linear(h, self.down, self.bias)


def ours(program, threads, name, kind):
    kind = {"float32": "f32", "bfloat16": "bf16"}[kind]
    out = subprocess.run([program, "auto", str(threads), name, kind, "1"], capture_output=True, text=True, check=True).stdout
    return float(re.search(re.escape(name) + r"\s+\S+\s+([0-9.]+) s", out).group(1))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--turns", type=int, default=3)
    p.add_argument("--name", default="")
    p.add_argument("--type", default="float32,bfloat16")
    p.add_argument("--b-encoder")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.set_grad_enabled(False)
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}", flush=True)
    for name, form, n_layers, rows, width, inner, heads in GEOMETRIES:
        if a.name not in name:
            continue
        for kind in a.type.split(","):
            layer = Layer(form, rows, width, inner, heads, getattr(torch, kind))
            if kind == "float32":
                layer.run()  # warm; bfloat16 takes too long for that on machines without such instructions
            theirs, mine = [], []
            for _ in range(a.turns):
                start = time.perf_counter()
                layer.run()
                theirs.append((time.perf_counter() - start) * n_layers)
                if a.b_encoder:
                    mine.append(ours(a.b_encoder, a.threads, name, kind))
            line = f"{name:26} {kind:8} PyTorch {statistics.median(theirs):7.2f} s ({min(theirs):.2f} - {max(theirs):.2f})"
            if mine:
                ratios = [t / m for t, m in zip(theirs, mine)]
                line += f" | cygnet {statistics.median(mine):7.2f} s ({min(mine):.2f} - {max(mine):.2f}) | {statistics.median(ratios):.2f} times as fast"
            print(line, flush=True)


if __name__ == "__main__":
    main()
