#!/usr/bin/env python3
"""Runs every lab of notebooks/ headless and judges it.

  run_notebooks.py [--update] [NN ...]      labs whose names begin with NN; all by default

For each lab, in a kernel of its own and from clean settings:
  solved    runs without an error, and every cell prints what is stored (cells tagged "varies" excepted)
  student   stops at its first hole, and says what to fill in
and without a kernel, cell by cell:
  holes     each guess and each hole by itself, all others filled: it stops there and says so
  wrong     each wrong answer of the source: a check refuses it with the sentence that the source promises
A lab without a hole, and a hole without a wrong answer, fail.  --update stores what the solved ones print and draw.
"""
import argparse
import concurrent.futures
import contextlib
import copy
import io
import os
import sys
import tempfile
import time
import warnings

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(TOP, "tools"), os.path.join(TOP, "notebooks")]
import make_notebooks as make  # noqa: E402  (needs the path)


def execute(notebook, path):
    """A copy of the notebook after its run in a new kernel, and the exception that ended it or None."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    done = nbformat.from_dict(copy.deepcopy(notebook))
    for cell in done.cells:
        cell.source = "".join(cell.source)
        if cell.cell_type == "code":
            cell.outputs = []
    client = NotebookClient(
        done, timeout=120, kernel_name="python3", resources={"metadata": {"path": os.path.dirname(path)}}
    )
    try:
        client.execute()
    except CellExecutionError as error:
        return done, error
    return done, None


def printed(cell):
    """The text of a cell's outputs."""
    text = ""
    for output in cell["outputs"]:
        data = output.get("text", output.get("data", {}).get("text/plain", ""))
        text += data if isinstance(data, str) else "".join(data)
    return text


def stored_form(done):
    """The executed notebook with what is worth keeping: texts and pictures, lines apart, no times of execution."""
    kept = []
    for n, cell in enumerate(done.cells):
        new = {
            "cell_type": cell.cell_type,
            "id": "cell-%02d" % n,
            "metadata": {"tags": cell.metadata["tags"]} if "tags" in cell.metadata else {},
            "source": cell.source.splitlines(keepends=True),
        }
        if cell.cell_type == "code":
            outputs = []
            for output in cell.outputs:
                output = dict(output)
                if output["output_type"] == "stream":
                    if outputs and outputs[-1].get("name") == output["name"]:
                        outputs[-1]["text"] += output["text"]
                        continue
                outputs.append(output)
            for output in outputs:
                if "text" in output:
                    output["text"] = output["text"].splitlines(keepends=True)
            new.update(execution_count=cell.execution_count, outputs=outputs)
        kept.append(new)
    return kept


def judge_solved(lab, update):
    path = lab.paths()[1]
    stored = make.read(path)
    done, error = execute(stored, path)
    if error:
        return ["solved: %s: %s" % (error.ename, error.evalue)]
    if update:
        make.write(path, dict(lab.notebook(False), cells=stored_form(done)))
        return []
    wrong = []
    for n, (new, old) in enumerate(zip(done.cells, stored["cells"])):
        if new.cell_type == "code" and "varies" not in new.metadata.get("tags", []) and printed(new) != printed(old):
            wrong.append(
                "solved: cell %d prints\n%s\nstored is\n%s\n  (when this is right, make notebooks-update stores it)"
                % (n, printed(new), printed(old))
            )
        if new.cell_type == "code" and any(o.get("name") == "stderr" for o in new.outputs):
            wrong.append("solved: cell %d complains: %s" % (n, printed(new)))
    return wrong


def judge_student(lab):
    path = lab.paths()[0]
    done, error = execute(make.read(path), path)
    if error is None:
        return ["student: it runs to its end without a hole"]
    first = next(
        n
        for n, (kind, _, body) in enumerate(lab.cells)
        if kind == "code" and (make.HOLE.search(body) or make.GUESS.search(body))
    )
    stopped = next(
        n
        for n, cell in enumerate(done.cells)
        if cell.cell_type == "code" and any(o.output_type == "error" for o in cell.outputs)
    )
    if error.ename != "FillIn" or not error.evalue.startswith("fill in") or stopped < first:
        return ["student: it stops in cell %d with %s: %s" % (stopped, error.ename, error.evalue)]
    return []


def run_cells(lab, **changed):
    """Runs the code of a lab in this process; the exception that ended it, or None."""
    space = {"__name__": "lab"}
    here = os.getcwd()
    os.chdir(make.FOLDER)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for kind, _, body in lab.cells:
                if kind == "code":
                    exec(compile(lab.code(body, **changed), lab.name, "exec"), space)
    except Exception as error:  # whatever a wrong answer does is looked at by the caller
        return error
    finally:
        os.chdir(here)
    return None


def judge_variants(lab):
    wrong = []
    variants = [("the guess '%s' left out" % what, "FillIn", what, {"without": (what,)}) for what in lab.guesses]
    variants += [
        ("the hole %s left empty" % name, "FillIn", what.replace('"', "'"), {"empty": (name,)})
        for name, what in lab.holes.items()
    ]
    variants += [
        ("the wrong answer '%s' for %s" % (sentence, hole), "Wrong", sentence, {"answer": (hole, lines)})
        for hole, sentence, lines in lab.wrong
    ]
    for name, kind, text, changed in variants:
        error = run_cells(lab, **changed)
        if type(error).__name__ != kind or text not in str(error):
            wrong.append("%s: %s: %s" % (name, type(error).__name__, error))
    untried = [hole for hole in lab.holes if hole not in {name for name, _, _ in lab.wrong}]
    if not lab.holes or not lab.guesses or untried:
        wrong.append("a lab needs a guess, a hole, and a wrong answer for each hole; without: %s" % (untried or "all"))
    return wrong, len(variants)


def judge(name, update):
    """All about one lab: sentences about what is wrong, checks made, seconds."""
    start = time.monotonic()
    lab = next(lab for lab in make.labs() if lab.name == name)
    wrong, count = judge_variants(lab)
    wrong += judge_student(lab) + judge_solved(lab, update)
    return name, wrong, count + 2, time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true")
    parser.add_argument("labs", nargs="*")
    options = parser.parse_args()
    every = [lab.name for lab in make.labs()]
    unknown = [start for start in options.labs if not any(name.startswith(start) for name in every)]
    if unknown:
        sys.exit("there is no lab '%s'; there are %s" % (unknown[0], " ".join(name[:2] for name in every)))
    names = [name for name in every if not options.labs or name.startswith(tuple(options.labs))]
    library = os.environ.get("DUALKV_LIBRARY", os.path.join(TOP, "build", "libdualkv.so"))
    with tempfile.TemporaryDirectory() as clean:
        os.environ.update(
            DUALKV_LIBRARY=os.path.abspath(library),
            HOME=clean,
            IPYTHONDIR=clean,
            MPLCONFIGDIR=clean,
            JUPYTER_CONFIG_DIR=clean,
            JUPYTER_DATA_DIR=clean,
            JUPYTER_RUNTIME_DIR=clean,
            OMP_WAIT_POLICY="passive",
            PYDEVD_DISABLE_FILE_VALIDATION="1",
            PYTHONWARNINGS="ignore",
            PYTHONDONTWRITEBYTECODE="1",
        )
        import lab  # noqa: F401  matplotlib builds its list of fonts once, before the kernels need it

        failed = passed = 0
        with concurrent.futures.ProcessPoolExecutor(max(1, min(os.cpu_count() or 1, 4))) as pool:
            for name, wrong, checks, seconds in pool.map(judge, names, [options.update] * len(names)):
                failed += len(wrong)
                passed += max(checks - len(wrong), 0)
                print(
                    "%-32s %2d checks, %4.1f s%s" % (name, checks, seconds, ", %d failed" % len(wrong) if wrong else "")
                )
                for sentence in wrong:
                    print("FAIL %s: %s" % (name, sentence))
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
