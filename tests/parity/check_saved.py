"""Checks that a checkpoint which this project writes loads in transformers and gives the same logits.

    make lib && python tests/parity/check_saved.py [--library build/libdualkv.so]

For both fixtures the library loads the checkpoint and saves it again, in f32 and in bf16; transformers loads what was
saved, without a missing or an unexpected weight, and runs the first path of the fixture's forest.  f32 must give the
logits of expected.safetensors to rounding; bf16 exactly the logits of the original weights rounded to bf16.
"""

import argparse
import ctypes
import pathlib
import sys
import tempfile

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

DTYPES = {"f32": 0, "bf16": 1}  # enum dkv_dtype
HERE = pathlib.Path(__file__).parent


def resave(library, source, target, dtype):
    """dkv_model_load(source), dkv_model_save(target)."""
    library.dkv_last_error.restype = ctypes.c_char_p
    model = ctypes.create_string_buffer(1 << 16)  # larger than a struct dkv_model
    for status in (library.dkv_model_load(model, str(source).encode(), None),
                   library.dkv_model_save(model, str(target).encode(), DTYPES[dtype])):
        if status:
            sys.exit(library.dkv_last_error().decode())
    library.dkv_model_free(model)


def load(directory):
    model, report = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    wrong = {key: value for key, value in report.items() if value}
    if wrong:
        sys.exit(f"{directory}: transformers complains: {wrong}")
    return model


def main():
    parser = argparse.ArgumentParser(description="Checks our checkpoints in transformers.")
    parser.add_argument("--library", default="build/libdualkv.so")
    library = ctypes.CDLL(str(pathlib.Path(parser.parse_args().library).resolve()))
    failed = 0
    for fixture in ("tied", "untied"):
        expected = load_file(HERE / fixture / "expected.safetensors")
        lengths = expected["segment_length"].tolist()
        ids = expected["ids"][: lengths[0] + lengths[1]].long().unsqueeze(0)  # the prompt and its first response
        source = expected["pair_source"].tolist()
        first_row = lengths[0] - 1
        row_of = sorted(set(source)).index(first_row)
        with tempfile.TemporaryDirectory() as directory:
            for dtype in DTYPES:
                target = pathlib.Path(directory) / dtype
                resave(library, HERE / fixture, target, dtype)
                got = load(target)(input_ids=ids).logits[0]
                if dtype == "f32":
                    want = expected["logits"][row_of : row_of + lengths[1]]
                    got = got[first_row : first_row + lengths[1]]
                else:
                    rounded = load(HERE / fixture)
                    with torch.no_grad():
                        for parameter in rounded.parameters():
                            parameter.copy_(parameter.to(torch.bfloat16).float())
                    want = rounded(input_ids=ids).logits[0]
                error = ((got - want).norm() / want.norm()).item()
                passed = error < (1e-5 if dtype == "f32" else 1e-12)
                failed += not passed
                print(f"{fixture:7} saved as {dtype:5} relative error of {want.shape[0]} rows of logits {error:.2e}  "
                      f"{'ok' if passed else 'FAILED'}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
