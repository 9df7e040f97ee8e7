"""One policy update (forward, backward, clip, AdamW) in C and in PyTorch: same shape, layout and cores, one run.

    make lib && python tests/parity/bench_torch.py [--build build] [--threads 2] [--json FILE]

PyTorch runs transformers' Qwen3ForCausalLM in float32 as a careful user would: scaled_dot_product_attention, logits of
the predicting rows only, fused AdamW, foreach gradient clipping.  Packed, it gets the packed rows with their path
positions and a dense additive mask; replicated, an ordinary [N, P+R] batch with a causal mask.  Each side runs in a
process of its own; they take turns of half a second or so, so that a moment in which the machine is slow meets all of
them, with a pause in between in which the threads of the last fall asleep.  Medians of all updates but the first two,
peak memory of the whole process.  Our side computes the last layer where it predicts only, as ever; "whole" is our time
when it does not.
--json adds the results to a file, in the place of older ones of the same shape and layout.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
#         L, C,   F,    V,    H, Hkv, D,  P,   N,  R, updates (and two to warm up)
SHAPES = {
    "demo": (2, 96, 256, 16, 4, 2, 32, 232, 16, 11, 98),
    "hidden 512": (4, 512, 1536, 2048, 8, 4, 64, 512, 16, 64, 13),
}
TURN = {"demo": 20, "hidden 512": 1}  # updates at a time: the first of a turn finds threads asleep and caches cold


def torch_side(shape, layout, threads):
    import resource

    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    layers, width, mlp, vocabulary, heads, kv_heads, dim, prompt, responses, length, repeats = shape
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model = Qwen3ForCausalLM(Qwen3Config(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=mlp, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=dim, max_position_embeddings=1 << 20,
        tie_word_embeddings=True, attn_implementation="sdpa", use_cache=False)).float()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    rows = prompt + responses * length
    count = responses * length
    weight = torch.randn(count) / count
    targets = torch.randint(0, vocabulary, (count,))
    if layout == "packed":
        ids = torch.randint(0, vocabulary, (1, rows))
        own = torch.arange(prompt, prompt + length)
        position = torch.cat([torch.arange(prompt), own.repeat(responses)]).unsqueeze(0)
        group = torch.cat([torch.full((prompt,), -1), torch.arange(responses).repeat_interleave(length)])
        i = torch.arange(rows)
        sees = (i[:, None] >= i[None, :]) & ((group[None, :] == -1) | (group[:, None] == group[None, :]))
        mask = torch.where(sees, 0.0, torch.finfo(torch.float32).min)[None, None]
        start = prompt + torch.arange(responses)[:, None] * length
        source = (start + torch.arange(length)[None, :] - 1).clone()
        source[:, 0] = prompt - 1
        unique, inverse = torch.unique(source.flatten(), return_inverse=True)

        def log_probabilities():
            logits = model(input_ids=ids, attention_mask=mask, position_ids=position, logits_to_keep=unique).logits[0]
            return torch.log_softmax(logits, -1)[inverse, targets]
    else:
        ids = torch.randint(0, vocabulary, (responses, prompt + length))

        def log_probabilities():
            logits = model(input_ids=ids, logits_to_keep=length + 1).logits[:, :-1].flatten(0, 1)
            return torch.log_softmax(logits, -1)[torch.arange(count), targets]

    seconds = []
    for turn in range(repeats + 2):  # two to warm up
        sys.stdin.readline()  # our turn
        begin = time.perf_counter()
        (log_probabilities() * weight).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if turn >= 2:
            seconds.append(1e3 * (time.perf_counter() - begin))
        print(flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"median_ms": statistics.median(seconds), "fastest_ms": min(seconds), "peak_mib": peak,
                      "torch": torch.__version__}))


def run(commands, updates, turn, threads):
    """Starts the programs and gives each the word for `turn` updates in turn. Returns what each prints in the end."""
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    sides = [subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
             for command in commands]
    for _ in range((updates + 2) // turn):
        for side in sides:
            side.stdin.write("\n" * turn)
            side.stdin.flush()
            for _ in range(turn):
                side.stdout.readline()
            time.sleep(0.02)
    last_words = [side.stdout.read() for side in sides]
    if any(side.wait() for side in sides):
        sys.exit("bench_torch: a side failed")
    return [json.loads(words) for words in last_words]


def source(args, torch_result):
    """Where a result comes from."""
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=10", "HEAD"], capture_output=True,
                            text=True).stdout.strip()
    return {"date": datetime.date.today().isoformat(), "cpu": cpu, "threads": args.threads, "commit": commit,
            "torch": torch_result["torch"]}


def main():
    parser = argparse.ArgumentParser(description="The same update in C and in PyTorch.")
    parser.add_argument("--build", default="build", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shape", choices=list(SHAPES), action="append")
    parser.add_argument("--layout", choices=["packed", "replicated"], action="append")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--torch-side", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.torch_side:
        return torch_side(SHAPES[args.torch_side[0]], args.torch_side[1], args.threads)

    program = args.build / "bench_update"
    subprocess.run(["cc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-fopenmp", "-I", ROOT, HERE / "bench_update.c", "-o",
                    program, "-L", args.build, "-ldualkv", "-lm", f"-Wl,-rpath,{args.build.resolve()}"], check=True)
    results = []
    print(f"{'shape':12}{'layout':12}{'C ms':>9}{'whole':>9}{'torch ms':>10}{'ratio':>7}{'C MiB':>8}{'torch MiB':>10}  C time in")
    for name in args.shape or SHAPES:
        for layout in args.layout or ("packed", "replicated"):
            numbers = [str(n) for n in SHAPES[name]]
            c_side, w_side = ([program, *numbers[:-1], layout + kind, numbers[-1]] for kind in ("", "-whole"))
            t_side = [sys.executable, __file__, "--threads", str(args.threads), "--torch-side", name, layout]
            ours, whole, theirs = run([c_side, w_side, t_side], SHAPES[name][-1], TURN[name], args.threads)
            c, w, t = (side["median_ms"] for side in (ours, whole, theirs))
            c_mib, t_mib = ours["peak_mib"], theirs["peak_mib"]
            shares = {k[6:]: v for k, v in ours.items() if k.startswith("share_")}
            results.append({"shape": name, "layout": layout, "c_ms": c, "c_whole_ms": w, "torch_ms": t, "ratio": t / c,
                            "c_peak_mib": c_mib, "torch_peak_mib": t_mib, "c_planned_mib": ours["planned_mib"],
                            "c_shares": shares, "rows": ours["rows"], "parameters": ours["parameters"], **source(args, theirs)})
            where = ", ".join(f"{k} {100 * v:.0f} %" for k, v in shares.items())
            print(f"{name:12}{layout:12}{c:9.1f}{w:9.1f}{t:10.1f}{t / c:7.2f}{c_mib:8.0f}{t_mib:10.0f}  {where}", flush=True)
    if args.json:
        done = {(r["shape"], r["layout"]) for r in results}
        old = json.loads(args.json.read_text())["results"] if args.json.exists() else []
        kept = [r for r in old if (r["shape"], r["layout"]) not in done]
        results = sorted(kept + results, key=lambda r: (list(SHAPES).index(r["shape"]), r["layout"]))
        args.json.write_text(json.dumps({"shapes": SHAPES, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
