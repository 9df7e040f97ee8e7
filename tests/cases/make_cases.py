#!/usr/bin/env python3
"""Writes the case files of this folder: attention problems with exact answers from a float64 oracle of its own.

The oracle shares nothing with the library.  It walks the tree: for each segment it lists the rows of its ancestors from
the root down, puts its own rows behind them, and runs ordinary causal attention of those rows over that list, one head
after another.  No mask is built, no end[] is used, nothing is packed: what a reader would write who has never heard of
packing.

    python3 tests/cases/make_cases.py            rewrites tests/cases/*.safetensors (needs NumPy)
    python3 tests/cases/make_cases.py OUT.safetensors --lengths 4096,512,300 --heads 8 --kv-heads 2 --head-dim 128 --dtype BF16
                                                 writes a case of your own: a prompt and its responses, or any tree with
                                                 --parents=-1,0,0; --without-answers leaves them to the definition

The files are committed, so the tests need neither Python nor NumPy.  The format is common/problem.h's.
"""
import argparse
import json
import os
import struct
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))


def round_to(x, dtype):
    """x in float64, rounded to the storage type; returns the rounded float64 values and the array to store."""
    if dtype == "F32":
        stored = x.astype(np.float32)
        return stored.astype(np.float64), stored
    if dtype == "F16":
        stored = x.astype(np.float16)
        return stored.astype(np.float64), stored
    # bf16: keep 8 significant bits of a float32, ties to even
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    stored = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    wide = (stored.astype(np.uint32) << 16).view(np.float32)
    return wide.astype(np.float64), stored


def paths(parent, length):
    """For each segment: its own rows, and the rows of its ancestors followed by its own."""
    first, rows = [], 0
    for n in length:
        first.append(rows)
        rows += n
    own = [list(range(f, f + n)) for f, n in zip(first, length)]
    whole = []
    for s, p in enumerate(parent):
        whole.append((whole[p] if p >= 0 else []) + own[s])
    return own, whole


def attend(q, k, v, dout, scale):
    """Causal attention of the last len(q) of len(k) rows, one head: o, lse and the four gradients' shares."""
    before = len(k) - len(q)
    o, lse = np.zeros_like(q), np.zeros(len(q))
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for i in range(len(q)):
        seen = before + i + 1
        s = scale * (k[:seen] @ q[i])
        top = s.max()
        lse[i] = top + np.log(np.exp(s - top).sum())
        p = np.exp(s - top) / np.exp(s - top).sum()
        o[i] = p @ v[:seen]
        dp = v[:seen] @ dout[i]
        ds = p * (dp - p @ dp)
        dq[i] = scale * (ds @ k[:seen])
        dk[:seen] += scale * np.outer(ds, q[i])
        dv[:seen] += np.outer(p, dout[i])
    return o, lse, dq, dk, dv


def solve(q, k, v, dout, parent, length, scale):
    """All heads, all segments; a row's keys are the rows of its path."""
    (rows, heads, _), kv_heads = q.shape, k.shape[1]
    o, lse, dq = np.zeros_like(q), np.zeros((heads, rows)), np.zeros_like(q)
    dk, dv = np.zeros_like(k), np.zeros_like(v)
    for mine, path in zip(*paths(parent, length)):
        if not mine:
            continue
        for h in range(heads):
            g = h // (heads // kv_heads)
            part = attend(q[mine, h], k[path, g], v[path, g], dout[mine, h], scale)
            o[mine, h], lse[h, mine], dq[mine, h] = part[:3]
            dk[path, g] += part[3]  # a path names every row once, so += adds up correctly
            dv[path, g] += part[4]
    return {"o": o, "lse": lse, "dq": dq, "dk": dk, "dv": dv}


def write(path, tensors, metadata):
    """tensors: name -> (safetensors dtype, array)."""
    header, offset, blobs = {"__metadata__": metadata}, 0, []
    for name, (dtype, array) in tensors.items():
        blob = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + len(blob)]}
        offset += len(blob)
        blobs.append(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def case(name, seed, parent, length, heads, kv_heads, dim, dtype="F32", scale=None, gain=1.0, path=None, answers=True):
    """One case file; q is multiplied by gain, scale defaults to 1/sqrt(dim)."""
    rng, rows = np.random.default_rng(seed), sum(length)
    scale = float(dim) ** -0.5 if scale is None else scale
    exact, tensors = [], {}
    for tensor, width, factor in (("q", heads, gain), ("k", kv_heads, 1), ("v", kv_heads, 1), ("do", heads, 1)):
        rounded, stored = round_to(factor * rng.standard_normal((rows, width, dim)), dtype)
        exact.append(rounded)
        tensors[tensor] = (dtype, stored)
    tensors["segment_parent"] = ("I32", np.array(parent, np.int32))
    tensors["segment_length"] = ("I32", np.array(length, np.int32))
    for tensor, array in (solve(*exact, parent, length, scale) if answers else {}).items():
        tensors[tensor] = ("F64", array)
    write(path or os.path.join(HERE, name + ".safetensors"), tensors, {"scale": repr(scale), "name": name})


def group(prompt, *responses):
    """A prompt with its responses."""
    return [-1] + [0] * len(responses), [prompt, *responses]


def main():
    case("smallest", 11, *group(1, 1), heads=1, kv_heads=1, dim=8)
    case("equal_responses", 12, *group(29, 9, 9, 9, 9), heads=4, kv_heads=2, dim=32)
    case("ragged_and_empty", 13, *group(65, 5, 0, 33, 1), heads=3, kv_heads=1, dim=32)
    case("around_tiles", 14, *group(128, 127, 1, 65), heads=2, kv_heads=1, dim=24, dtype="BF16")
    case("two_prompts", 15, [-1, 0, 0, -1, 3, 3, 3], [41, 13, 20, 6, 8, 0, 31], heads=4, kv_heads=2, dim=16)
    case("huge_scores", 16, *group(30, 21, 17), heads=2, kv_heads=1, dim=32, gain=30.0)
    case("wide_heads", 17, *group(40, 22, 35), heads=2, kv_heads=1, dim=128, dtype="BF16")
    case("without_prompt", 18, *group(0, 19, 6), heads=2, kv_heads=2, dim=40)
    case("branching_turns", 19, [-1, 0, 1, 1, 0, 4, 4], [15, 8, 5, 9, 11, 0, 7], heads=2, kv_heads=1, dim=48,
         dtype="F16")
    case("own_scale", 20, *group(17, 10, 12), heads=3, kv_heads=3, dim=16, scale=0.375)


def own(arguments):
    """A case with the sizes of the command line."""
    numbers = lambda text: [int(n) for n in text.split(",")]
    parser = argparse.ArgumentParser(description="Writes a case of your own: a prompt and its responses, or a tree.")
    parser.add_argument("out")
    parser.add_argument("--lengths", type=numbers, required=True)
    parser.add_argument("--parents", type=numbers)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtype", choices=("F32", "BF16", "F16"), default="F32")
    parser.add_argument("--scale", type=float)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without-answers", action="store_true")
    a = parser.parse_args(arguments)
    parents = a.parents or group(*a.lengths)[0]
    if len(parents) != len(a.lengths):
        parser.error("%d parents for %d lengths" % (len(parents), len(a.lengths)))
    name = os.path.splitext(os.path.basename(a.out))[0]
    case(name, a.seed, parents, a.lengths, a.heads, a.kv_heads, a.head_dim, a.dtype, a.scale, 1.0, a.out, not a.without_answers)


if __name__ == "__main__":
    own(sys.argv[1:]) if sys.argv[1:] else main()
