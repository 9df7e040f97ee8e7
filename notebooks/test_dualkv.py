#!/usr/bin/env python3
"""Checks the binding: layouts, attention against NumPy, packed == fold(replicated), and that failures are sentences.

python3 notebooks/test_dualkv.py        exit code 1 when something is wrong
"""
import sys, os

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import numpy as np
import dualkv as dk
import run_tests


def numpy_attention(q, k, v, mask, scale):
    g, out = q.shape[1] // k.shape[1], np.empty_like(q)
    for h in range(q.shape[1]):
        s = np.where(mask, scale * q[:, h] @ k[:, h // g].T, -np.inf)
        p = np.exp(s - s.max(1, keepdims=True))
        out[:, h] = p / p.sum(1, keepdims=True) @ v[:, h // g]
    return out


def problem(layout, heads=4, kv_heads=2, dim=16, seed=0):
    rng = np.random.default_rng(seed)
    make = lambda h: dk.round_to(rng.standard_normal((layout.rows, h, dim)), "f32")
    return make(heads), make(kv_heads), make(kv_heads), make(heads)


def test_seven_token_group():
    layout = dk.group(3, [2, 2])
    assert (
        layout.rows == 7
        and layout.end.tolist() == [7, 7, 7, 5, 5, 7, 7]
        and layout.position.tolist() == [0, 1, 2, 3, 4, 3, 4]
    )
    assert layout.pairs == layout.mask().sum() == 24
    assert layout.predictions().tolist() == [[2, 3, 1], [3, 4, 1], [2, 5, 2], [5, 6, 2]]
    assert layout.key_ranges(5, 7) == [(0, 3), (5, 7)] and layout.query_range(0, 3) == (0, 7)
    assert layout.tile_class(5, 7, 3, 5) == "empty" and layout.tile_class(3, 5, 0, 3) == "full"
    assert "p" in layout.draw()


def test_attention_is_numpys():
    layout = dk.groups((5, [3, 0, 7]), (0, [2]), (4, []))
    q, k, v, _ = problem(layout)
    want = numpy_attention(q, k, v, layout.mask(), 0.25)
    for backend, bound in (("ref", 1e-6), ("cpu", 2e-6)):
        got = dk.attention(q, k, v, layout, backend=backend)["o"]
        assert np.linalg.norm(got - want) <= bound * np.linalg.norm(want), backend
    exact = dk.attention(q, k, v, layout, backend="ref", dtype="f64")["o"]
    assert np.linalg.norm(exact - want) <= 1e-13 * np.linalg.norm(want)


def test_packed_equals_folded_replicated():
    layout = dk.group(9, [4, 1, 6])
    q, k, v, do = problem(layout)
    replicated, row_map = layout.replicate()
    assert replicated.rows == 3 * 9 + 11
    do_copies = do[row_map]
    do_copies[9 + 4 : 9 + 4 + 9] = 0
    do_copies[9 + 4 + 9 + 1 : 9 + 4 + 9 + 1 + 9] = 0  # the prompt's gradient enters once
    packed = dk.attention(q, k, v, layout, do=do, backend="ref", dtype="f64")
    copies = dk.attention(q[row_map], k[row_map], v[row_map], replicated, do=do_copies, backend="ref", dtype="f64")
    assert np.abs(packed["o"][row_map] - copies["o"]).max() < 1e-13
    for name in ("dq", "dk", "dv"):
        assert np.abs(packed[name] - dk.fold(copies[name], row_map, layout.rows)).max() < 1e-12, name


def test_costs_and_advantages():
    assert abs(dk.rho(3, 2, 2) - 10 / 7) < 1e-15 and abs(dk.pair_ratio(3, 2, 2) - 50 / 41) < 1e-15
    saving = dk.saving(dk.group(4096, [512] * 16))
    assert abs(saving["rho"] - 16 * 4608 / (4096 + 16 * 512)) < 1e-12
    assert abs(dk.advantages([1, 0, 0, 0, 0, 0, 0, 0])[0] - 2.4748667) < 1e-6


def test_counts_of_the_tiled_kernel():
    packed = dk.group(1024, [128] * 8)
    a, b = dk.count(packed), dk.count(packed.replicate()[0])
    assert a["useful_pairs"] == 32 * packed.pairs and a["useful_flops"] == 4.0 * 128 * a["useful_pairs"]
    assert a["issued_pairs"] >= a["useful_pairs"] and a["reads"].sum() * 8 == a["key_loads"] and len(a["reads"]) == 16
    assert b["key_bytes"] > 2 * a["key_bytes"] and a["sum_bytes"] == 0
    assert dk.count(packed, direction="backward")["sum_bytes"] > 0


def test_policy_loss_on_paper():
    short_long = dict(logprob=np.zeros(10), old=np.zeros(10), lengths=[2, 8], advantage=[1, -1])
    for method, loss, short, long in (
        ("dapo", 0.6, -1 / 10, 1 / 10),
        ("grpo", 0, -1 / 4, 1 / 16),
        ("dr_grpo", 0.3, -1 / 20, 1 / 20),
    ):
        got, slope = dk.policy_loss(method=method, max_length=10, **short_long)
        assert abs(got - loss) < 1e-7 and abs(slope[0] - short) < 1e-7 and abs(slope[9] - long) < 1e-7, method
    parts = [
        dk.policy_loss(np.zeros(n), np.zeros(n), [n], [a], tokens=10, responses=2)[0] for n, a in ((2, 1), (8, -1))
    ]
    assert abs(sum(parts) - 0.6) < 1e-7
    for ratio, advantage, slope in ((1.5, 1, 0), (1.5, -1, 1.5), (0.5, 1, -0.5), (0.5, -1, 0)):
        assert abs(dk.policy_loss([np.log(ratio)], [0], [1], [advantage])[1][0] - slope) < 1e-6
    try:
        dk.policy_loss([0.0], [0.0], [1], [1.0], clip_height=1)
    except ValueError as error:
        assert "clip_height" in str(error)
    else:
        raise AssertionError("a constant that does not exist was taken")


def test_rope_turns_by_position():
    x = np.tile([1.0, 0.0], (7, 1, 1))
    layout = dk.group(3, [2, 2])
    got = dk.rope(x, layout.position)
    assert np.abs(got[:, 0] - np.stack([np.cos(layout.position), np.sin(layout.position)], 1)).max() < 1e-6
    wide = np.random.default_rng(0).standard_normal((5, 2, 8))
    angle = 3 * 10000.0 ** (-2 * np.arange(4) / 8)
    want = np.concatenate(
        [
            wide[3, :, :4] * np.cos(angle) - wide[3, :, 4:] * np.sin(angle),
            wide[3, :, 4:] * np.cos(angle) + wide[3, :, :4] * np.sin(angle),
        ],
        1,
    )
    assert np.abs(dk.rope(wide, np.arange(5))[3] - want).max() < 1e-6


def test_failures_are_sentences():
    for bad in (
        lambda: dk.Layout([0], [1]),
        lambda: dk.Layout([-1], [-3]),
        lambda: dk.attention(*[np.zeros((1, 1, 9))] * 3, dk.group(1, [])),
        lambda: dk.attention(*[np.zeros((1, 1, 8))] * 3, dk.group(1, []), backend="tpu"),
    ):
        try:
            bad()
        except dk.DualKVError as error:
            assert len(str(error)) > 10 and error.status.startswith("DKV_ERR"), error
        else:
            raise AssertionError("nothing was raised")


if __name__ == "__main__":
    run_tests.run("binding", globals())
