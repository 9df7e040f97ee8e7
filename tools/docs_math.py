"""Formulas of the Markdown pages as HTML with real subscripts and superscripts, for tools/docs_pages.py.

The Markdown writes x_r^{l+1}, <q_i, k_j>, <= and so on, which reads well in an editor and on GitHub.  Doxygen would want
LaTeX or a script from the network for more; HTML itself is enough.
"""
import html
import re

CHAPTER = re.compile(r"docs/(equivalence|notation)\.md|tutorials/\d\d_")
BLOCK = re.compile(r"(?:^ {4}(?! *(?:[-*] |\d+\. ))\S.*\n(?:\n(?= {4}\S))?)+", re.M)
SIGNS = [("<=>", "⇔"), ("<=", "≤"), (">=", "≥"), ("sum_", "∑_")]
IN_FORMULAS = [*SIGNS, ("->", "→"), (" * ", " · "), ("infinity", "∞")]
BRACKETS = re.compile(r"<(?=[^<>=/]*,\s)([^<>=]*)>")
LOWERED = re.compile(
    r"((?<![\w#`.])(?!sm_)[A-Za-z]{1,5}'?|\)|∑)_(\{[^{}]*\}|[A-Za-z0-9]{1,2}|(?<=J_)[a-z]+)(?![\w.]\w|\w)"
)
RAISED = re.compile(r"(?<=[\w)>}'])\^(\{[^{}]*\}|[A-Za-z0-9]{1,3})(?!\w)")


def replaced(text, signs):
    for sign, better in signs:
        text = text.replace(sign, better)
    return text


def raised_and_lowered(text):
    text = LOWERED.sub(lambda m: f"{m.group(1)}<sub>{m.group(2).strip('{}')}</sub>", text)
    return RAISED.sub(lambda m: f"<sup>{m.group(1).strip('{}')}</sup>", text)


def prose(text):
    """A paragraph's formulas; code, link targets and commands stay as they are."""
    parts = re.split(r"(`[^`]*`|\]\([^)]*\)|@subpage \S+|^#.*$)", text, flags=re.M)
    for k in range(0, len(parts), 2):
        parts[k] = raised_and_lowered(replaced(BRACKETS.sub(r"⟨\1⟩", parts[k]), SIGNS))
    return "".join(parts)


def formula(block):
    """An indented block as a table: a row for each line, a cell wherever three spaces or more part it."""
    rows = []
    for line in block.strip("\n").split("\n"):
        text = replaced(BRACKETS.sub(r"⟨\1⟩", re.sub(r"= +", "= ", line.strip())), IN_FORMULAS)
        text = raised_and_lowered(html.escape(text, quote=False))
        rows.append([cell for cell in re.split(r" {3,}", text) if cell])
    most = max(map(len, rows))
    lines = []
    for cells in rows:
        span = f' colspan="{most - len(cells) + 1}"' if len(cells) < most else ""
        tags = [f"<td>{cell}</td>" for cell in cells[:-1]] + [f"<td{span}>{cells[-1]}</td>" if cells else "<td></td>"]
        lines.append("<tr>" + "".join(tags) + "</tr>")
    return "\n@htmlonly[block]\n<table class=\"formula\">" + "".join(lines) + "</table>\n@endhtmlonly\n"


def page(text):
    """A stretch of a page without code fences."""
    out, at = [], 0
    for match in BLOCK.finditer(text):
        before = text[at:match.start()]
        if before and not before.endswith("\n\n"):  # the second line of a list's item, not a formula
            continue
        out += [prose(before), formula(match.group(0))]
        at = match.end()
    return "".join(out) + prose(text[at:])
