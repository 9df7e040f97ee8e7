"""Makes the parity fixtures: tiny random Qwen3ForCausalLM checkpoints and what transformers computes with them.

    pip install torch transformers safetensors        (any recent version; the CPU is enough)
    python tests/parity/make_qwen3.py                 writes tests/parity/{tied,untied}/

Each directory is an ordinary Hugging Face checkpoint in float32 (tied: one file; untied: two shards and an index) and
expected.safetensors:

    segment_parent, segment_length  [S]      a forest: one group with ragged responses, one deeper tree
    ids                             [T]      a token of every packed row
    pair_source, pair_target        [pairs]  which row predicts which (the order of dkv_predictions)
    weight_logprob, weight_entropy  [pairs]  loss = sum_i weight_logprob[i] logprob[i] + weight_entropy[i] entropy[i]
    temperature                     [1]
    logits                          [U][V]   of the distinct source rows, ascending; not divided by the temperature
    logprob, entropy                [pairs]
    grad.NAME                                gradient of the loss with respect to every parameter

transformers never sees the packed batch.  It runs every path from a root to a leaf as an ordinary sequence of its own;
a prompt that N responses share is run N times.
"""

import argparse
import json
import pathlib

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

PARENT = [-1, 0, 0, 0, -1, 4, 5, 5, 4]
LENGTH = [6, 5, 1, 3, 4, 3, 2, 4, 2]
TEMPERATURE = 0.8


def make_model(tied, seed):
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=48, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=64, rms_norm_eps=1e-6, tie_word_embeddings=tied,
        rope_parameters={"rope_theta": 5000.0, "rope_type": "default"}, initializer_range=0.25, eos_token_id=[3, 5],
        attn_implementation="eager",
    )
    model = Qwen3ForCausalLM(config).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):  # ones would hide a forgotten weight
                parameter.copy_(0.5 + torch.rand_like(parameter))
    return model


def paths():
    """Every leaf's rows, root first, and each row's parent row on its path."""
    start = [sum(LENGTH[:s]) for s in range(len(LENGTH))]
    rows_of = [list(range(start[s], start[s] + LENGTH[s])) for s in range(len(LENGTH))]
    out = []
    for leaf in range(len(PARENT)):
        if leaf in PARENT:
            continue
        chain, s = [], leaf
        while s >= 0:
            chain.insert(0, s)
            s = PARENT[s]
        out.append([row for s in chain for row in rows_of[s]])
    return out


def pairs():
    """(source, target) of every row of a segment that is not a root."""
    before = {}
    for path in paths():
        for source, target in zip(path, path[1:]):
            before[target] = source
    start = [sum(LENGTH[:s]) for s in range(len(LENGTH))]
    targets = [r for s in range(len(LENGTH)) if PARENT[s] >= 0 for r in range(start[s], start[s] + LENGTH[s])]
    return [(before[t], t) for t in targets]


def compute(model, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = sum(LENGTH)
    ids = torch.randint(0, model.config.vocab_size, (rows,), generator=generator)
    scored = pairs()
    weight_logprob = torch.randn(len(scored), generator=generator)
    weight_entropy = torch.randn(len(scored), generator=generator)
    logits = {}  # row -> logits, from the first path that holds the row
    for path in paths():
        out = model(input_ids=ids[path].unsqueeze(0)).logits[0]
        for i, row in enumerate(path):
            logits.setdefault(row, out[i])
    log_p = [torch.log_softmax(logits[s] / TEMPERATURE, -1) for s, _ in scored]
    logprob = torch.stack([p[ids[t]] for p, (_, t) in zip(log_p, scored)])
    entropy = torch.stack([-(p.exp() * p).sum() for p in log_p])
    model.zero_grad()
    (weight_logprob * logprob + weight_entropy * entropy).sum().backward()
    sources = sorted({s for s, _ in scored})
    expected = {
        "segment_parent": torch.tensor(PARENT, dtype=torch.int32),
        "segment_length": torch.tensor(LENGTH, dtype=torch.int32),
        "ids": ids.to(torch.int32),
        "pair_source": torch.tensor([s for s, _ in scored], dtype=torch.int32),
        "pair_target": torch.tensor([t for _, t in scored], dtype=torch.int32),
        "weight_logprob": weight_logprob,
        "weight_entropy": weight_entropy,
        "temperature": torch.tensor([TEMPERATURE]),
        "logits": torch.stack([logits[s] for s in sources]),
        "logprob": logprob,
        "entropy": entropy,
    }
    for name, parameter in model.named_parameters():
        expected["grad." + name] = parameter.grad
    return {name: tensor.detach().clone().contiguous() for name, tensor in expected.items()}


def main():
    parser = argparse.ArgumentParser(description="Makes the parity fixtures.")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    args = parser.parse_args()
    for name, tied, shard in (("tied", True, "10GB"), ("untied", False, "64KB")):
        model = make_model(tied, seed=7 if tied else 8)
        directory = args.out / name
        model.save_pretrained(directory, max_shard_size=shard)
        save_file(compute(model, seed=9), directory / "expected.safetensors")
        for file in directory.iterdir():
            file.chmod(0o644)
        files = sorted(f.name for f in directory.iterdir())
        print(f"{directory}: {', '.join(files)}, {sum(f.stat().st_size for f in directory.iterdir()) / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
