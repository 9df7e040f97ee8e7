"""A notebook as HTML for tools/docs_pages.py: text, code, what was printed, pictures with their text; no script.

Links are kept relative: from source/notebooks/X.ipynb.html a link to ../tutorials/Y.md leads to its page under source/.
"""

import html
import json
import os
import posixpath
import re

SIGNS = [
    ("\\qquad", " \u2003 "),
    ("\\quad", " \u2002 "),
    ("\\;", " "),
    ("\\,", " "),
    ("\\sum", "∑"),
    ("\\rho", "ρ"),
    ("\\delta", "δ"),
    ("\\theta", "θ"),
    ("\\cdot", "·"),
    ("\\infty", "∞"),
    ("\\to", "→"),
    ("\\ln", "ln"),
    ("\\min", "min"),
    ("\\max", "max"),
    ("\\cos", "cos"),
    ("\\sin", "sin"),
    ("\\%", "%"),
]


def formula(text):
    """The little LaTeX that the labs use, as HTML."""
    text = re.sub(r"\\(?:text|mathrm)\{([^{}]*)\}", r"\1", text)
    for sign, better in SIGNS:
        text = text.replace(sign, better)
    text = html.escape(text, quote=False)
    for mark, tag in (("_", "sub"), ("^", "sup")):
        text = re.sub(
            re.escape(mark) + r"(\{[^{}]*\}|\w)", lambda m, tag=tag: f"<{tag}>{m.group(1).strip('{}')}</{tag}>", text
        )
    return "<i>" + re.sub(r"\\d?frac\{([^{}]*)\}\{([^{}]*)\}", r"(\1) / (\2)", text) + "</i>"


def inline(text, here, wanted):
    """A paragraph: code, formulas, links, emphasis."""

    def link(match):
        target = match.group(2)
        if re.match(r"[a-z]+:", target):
            return f'<a href="{target}">{match.group(1)}</a>'
        wanted.append(posixpath.normpath(posixpath.join(posixpath.dirname(here), target)))
        return f'<a href="{target}.html">{match.group(1)}</a>'

    kept = []

    def keep(markup):
        kept.append(markup)
        return f"\0{len(kept) - 1}\0"

    text = re.sub(r"`([^`]+)`", lambda m: keep(f"<code>{html.escape(m.group(1))}</code>"), text)
    text = re.sub(r"\$\$?([^$]+)\$\$?", lambda m: keep(formula(m.group(1))), text)
    text = re.sub(r"\[([^\]]+)\]\(([^)]+)\)", lambda m: keep(link(m)), html.escape(text, quote=False))
    text = re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", text)
    text = re.sub(r"\*([^*]+)\*", r"<i>\1</i>", text)
    while "\0" in text:
        text = re.sub("\0(\\d+)\0", lambda m: kept[int(m.group(1))], text)
    return text


def markdown(text, here, wanted):
    """Headings and paragraphs: more the labs do not use."""
    parts = []
    for block in re.split(r"\n\s*\n", text.strip()):
        head = re.match(r"(#+) (.*)", block)
        level = len(head.group(1)) if head else 0
        parts.append(
            f"<h{level}>{inline(head.group(2), here, wanted)}</h{level}>"
            if head
            else f"<p>{inline(block, here, wanted)}</p>"
        )
    return "\n".join(parts)


def output(item):
    """A printed text, a picture, or the sentence of an error."""
    data = item.get("data", {})
    if "image/png" in data:
        alt = html.escape(item.get("metadata", {}).get("image/png", {}).get("alt", ""))
        picture = "".join(data["image/png"]).replace("\n", "")
        return f'<p><img style="max-width:100%" alt="{alt}" src="data:image/png;base64,{picture}"/></p>'
    text = "".join(item.get("text", data.get("text/plain", "")))
    return f'<pre class="printed">{html.escape(text.rstrip())}</pre>'


def notebook_page(path, text):
    """(HTML of the notebook's cells, paths that it links to); path is the notebook's place in the project."""
    parts, wanted = [], []
    solved = posixpath.join("notebooks", "solved", os.path.basename(path))
    if path != solved:
        wanted.append(solved)
        parts.append(
            f'<p>The notebook with its holes; <a href="solved/{os.path.basename(path)}.html">solved, with all'
            " output</a>.</p>"
        )
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(markdown(source, path, wanted))
        else:
            parts.append(f'<pre class="code">{html.escape(source)}</pre>')
            parts.extend(output(item) for item in cell["outputs"])
    return "\n".join(parts), wanted
