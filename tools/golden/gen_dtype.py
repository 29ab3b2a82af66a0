"""Write tests/golden/dtype.bin: random blocks of every number format with the `gguf` package's answer.

    python tools/golden/gen_dtype.py [OUT]

Layout, little-endian: 8 bytes "dtype 1\n", then records until the end:
    u32 type number of GGUF, u32 direction (0 = block bytes to float32, 1 = float32 to block bytes),
    u32 n elements, u32 n bytes of blocks, the blocks, n float32
"""

import struct
import sys
from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize, quantize

# Byte offsets of half-precision numbers in a block: random bits there could be infinite or NaN.
HALVES = {
    T.F16: [0], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108],
    T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_NL: [0], T.IQ4_XS: [0],
}  # fmt: skip
ELEMENTS = 2048


def finite_halves(rng, n):
    """Half the time any finite bit pattern (subnormals, extremes), half the time the size of a real scale."""
    any_bits = rng.integers(0, 1 << 16, n, dtype=np.uint16)
    any_bits = np.where((any_bits & 0x7C00) == 0x7C00, any_bits ^ 0x4000, any_bits).astype(np.uint16)
    usual = (rng.standard_normal(n) * 0.02).astype(np.float16).view(np.uint16)
    return np.where(rng.random(n) < 0.5, any_bits, usual).astype(np.uint16)


def random_blocks(rng, qtype):
    block, size = GGML_QUANT_SIZES[qtype]
    raw = rng.integers(0, 256, (ELEMENTS // block, size), dtype=np.uint8)
    for at in HALVES.get(qtype, []):
        raw[:, at : at + 2] = finite_halves(rng, len(raw)).view(np.uint8).reshape(-1, 2)
    if qtype in (T.F32, T.BF16):  # keep them finite
        top = raw[:, size - 1 : size] & 0x7F
        raw[:, size - 1 : size] = np.where(top == 0x7F, raw[:, size - 1 : size] ^ 0x40, raw[:, size - 1 : size])
    return raw.reshape(1, -1)


def floats_to_round(rng):
    x = (rng.standard_normal(ELEMENTS) * np.exp(rng.uniform(-12, 6, ELEMENTS))).astype(np.float32)
    rows = x.reshape(-1, 32)
    rows[0] = 0
    rows[1] = -0.0
    rows[2] = np.arange(32) - 16  # ties, equal magnitudes of both signs
    rows[3] = np.arange(32) * 4 + 0.5
    rows[4] = np.where(np.arange(32) % 2, 1, -1) * 0.25
    rows[5] = rng.standard_normal(32) * 6e-8  # half-precision subnormals
    rows[6] = 3.5
    rows[7] = (np.arange(32) - 15.5) / 127
    rows[8] = np.arange(32) * 4 + 2.5  # with a scale of exactly one: every number a tie
    rows[8, 31] = 127
    rows[9] = -rows[8]
    return x.reshape(1, -1)


def halves_to_round(rng):
    """Neighbourhoods of every rounding edge of half precision and bfloat16."""
    halves = np.arange(0, 0x7C00, 61, dtype=np.uint16).view(np.float16).astype(np.float32)
    middle = (halves[:-1] + halves[1:]) / 2
    edges = np.array([65504, 65519.996, 65520, 65536, 2**-24, 2**-25, 2**-25 * 1.0001, 2**-14, 2**-14 - 2**-25, 1e-45, 3.39e38], np.float32)
    ulps = rng.integers(0, 1 << 31, 512, dtype=np.uint32)
    ulps = np.where((ulps & 0x7F800000) == 0x7F800000, ulps ^ 0x40000000, ulps).astype(np.uint32)
    ties = ((ulps & 0xFFFF0000) | 0x8000).astype(np.uint32).view(np.float32)
    x = np.concatenate([middle, edges, ulps.view(np.float32), ties, [np.inf, 0.0]]).astype(np.float32)
    return np.concatenate([x, -x]).reshape(1, -1)


def main():
    default = Path(__file__).resolve().parents[2] / "tests/golden/dtype.bin"
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    rng = np.random.default_rng(20240607)
    records = [b"dtype 1\n"]

    def record(qtype, direction, raw, values):
        values = np.ascontiguousarray(values, np.float32).ravel()
        raw = np.ascontiguousarray(raw).view(np.uint8).ravel()
        records.append(struct.pack("<4I", int(qtype), direction, values.size, raw.size) + raw.tobytes() + values.tobytes())

    with np.errstate(over="ignore", invalid="ignore"):
        for qtype in (T.F32, T.BF16, *HALVES):
            raw = random_blocks(rng, qtype)
            record(qtype, 0, raw, dequantize(raw, qtype))
        for qtype in (T.Q8_0, T.Q4_0):
            x = floats_to_round(rng)
            record(qtype, 1, quantize(x, qtype), x)
        x = halves_to_round(rng)
        record(T.F16, 1, x.astype(np.float16), x)
        record(T.BF16, 1, quantize(x, T.BF16), x)
    data = b"".join(records)
    out.write_bytes(data)
    print(f"{out}: {len(records) - 1} records, {len(data)} bytes")


if __name__ == "__main__":
    main()
