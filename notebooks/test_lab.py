#!/usr/bin/env python3
"""Checks lab.py: what predict, fill_in and check refuse, and with which sentence.

python3 notebooks/test_lab.py        exit code 1 when something is wrong
"""
import contextlib
import io
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import numpy as np

import lab
import run_tests


def refused(kind, text, function, *arguments, **more):
    """Does the call raise this kind of Stop, with this text?"""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            function(*arguments, **more)
        except lab.Stop as stop:
            return isinstance(stop, kind) and text in str(stop)
    return False


def accepted(*arguments, **more):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        lab.check(*arguments, **more)
    return said.getvalue().startswith("right: ")


def test_holes_say_what_to_fill_in():
    assert refused(lab.FillIn, "fill in your prediction in place of the three dots: rows", lab.predict, "rows", ...)
    assert refused(lab.FillIn, "fill in: return the rows", lab.fill_in, "return the rows")
    assert not refused(lab.FillIn, "", lab.predict, "rows", None)


def test_right_answers_pass():
    assert accepted("rows", 7, 7) and accepted("rows", 7.0, 7) and accepted("rows", [1, 2], np.array([1, 2]))
    assert accepted("lse", np.array([-np.inf, 0.5]), np.array([-np.inf, 0.5 + 1e-12])) and accepted(
        "ranges", "[(0, 3)]", "[(0, 3)]"
    )


def test_wrong_answers_do_not():
    nan = np.nan
    for got, want in (
        (8, 7),
        (nan, 7.0),
        (nan, nan),
        (np.array([1, nan]), np.array([1.0, 2])),
        (np.array([np.inf, 1]), np.array([1.0, 1])),
        (np.array([1.0, 1]), np.array([np.inf, 1])),
        (np.ones(3), np.ones(2)),
        (None, 7),
        ("full", "empty"),
        (7 + 1e-6, 7),
    ):
        assert refused(lab.Wrong, "x", lab.check, "x", got, want), (got, want)
    assert refused(lab.Wrong, "[1]: 3.0, wanted is 2.0", lab.check, "x", np.array([1.0, 3]), np.array([1.0, 2]))


def test_known_mistakes_have_their_sentence():
    mistakes = [(9, "nine"), (lambda got: got > 100, "large"), (7, "the right one as a mistake")]
    assert refused(lab.Wrong, "nine", lab.check, "x", 9, 7, mistakes=mistakes)
    assert refused(lab.Wrong, "large", lab.check, "x", 101, 7, mistakes=mistakes)
    assert refused(lab.Wrong, "8 is not it", lab.check, "x", 8, 7, mistakes=mistakes)
    assert accepted("x", 7, 7, mistakes=mistakes)


if __name__ == "__main__":
    run_tests.run("lab", globals())
