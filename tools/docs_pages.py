#!/usr/bin/env python3
"""Makes the Markdown of this project and the pages that Doxygen builds from it agree, without touching the Markdown.

  docs_pages.py filter FILE.md|FILE.h   what Doxygen reads instead of the file (INPUT_FILTER of docs/Doxyfile)
  docs_pages.py finish HTML_FOLDER      adds figures and the text of every source that a page links to, then looks at
                                        every local link; exits 1 and names those that lead nowhere

Markdown links as GitHub wants them: relative to the page, with GitHub's anchors, to any file or folder.  Doxygen knows
pages by a label, has other anchors, and no page for a .c or a .cu.  So the filter gives every page and heading a label,
and turns links into links to those; whatever else is linked becomes a page under HTML_FOLDER/source.  Citations
`name` (path/to/file)  become links to the line where the name stands.
"""

import html
import os
import re
import shutil
import subprocess
import sys
import urllib.parse

import docs_math
import notebook_page

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CITATION = re.compile(r"((?:`[\w.]+`(?:,\s+|\s+and\s+)?)+)(\s+)\(((?:[\w.-]+/)+[\w.-]+)\)")

# The tree of pages: the first link from the left page to a right one places it there.
CHILDREN = {
    "README.md": [
        "tutorials/README.md",
        "tutorials/instructor.md",
        "docs/reading_order.md",
        "docs/equivalence.md",
        "docs/adding_a_kernel.md",
        "docs/rungs.md",
        "docs/training.md",
        "docs/testing.md",
        "docs/results.md",
        "docs/contributing.md",
        "notebooks/README.md",
    ],
    "docs/reading_order.md": ["docs/notation.md", "docs/numerics.md", "docs/paper_map.md"],
    "docs/rungs.md": ["docs/worklog_ladder.md", "docs/worklog_forward.md", "docs/worklog_backward.md"],
}
# The module pages of docs/modules.dox: the first prefix that a header's path begins with.
GROUPS = [
    ("common/model/", "model"),
    ("common/rl/", "rl"),
    ("common/suite", "trust"),
    ("common/compare.h", "trust"),
    ("common/outlier.h", "trust"),
    ("common/layout.h", "layout"),
    ("common/mask.h", "layout"),
    ("common/pack.h", "layout"),
    ("common/tiles.h", "layout"),
    ("common/cost.h", "layout"),
    ("common/attention.h", "attention"),
    ("common/backend.h", "attention"),
    ("common/execute.h", "attention"),
    ("common/softmax.h", "attention"),
    ("common/layers.h", "layers"),
    ("cpu/", "cpu"),
    ("gpu/", "gpu"),
    ("tools/", "tools"),
    ("common/", "runtime"),
]


def read(path):
    with open(os.path.join(TOP, path), encoding="utf-8") as file:
        return file.read()


def page_label(path):
    """Doxygen's label of a Markdown page, which is also the name of its HTML file."""
    folder, name = os.path.split(path)
    stem = os.path.splitext(name)[0]
    if path == "README.md":
        return "index"
    if stem == "README":
        return {"tutorials": "course"}.get(folder, re.sub(r"\W", "_", folder))
    if stem[0].isdigit():
        return "chapter_" + stem
    return stem if folder in ("docs", "tutorials") else re.sub(r"\W", "_", os.path.join(folder, stem))


def heading_label(path, anchor):
    return page_label(path) + "-" + anchor


def github_anchor(heading):
    return re.sub(r"[^\w\- ]", "", heading.lower().replace("`", "")).strip().replace(" ", "-")


def line_of(path, name):
    """The line of a file where a name is best read: what looks like its definition, else its first mention."""
    lines = read(path).split("\n")
    word = re.compile(r"(?<!\w)" + re.escape(name) + r"(?!\w)")
    hits = [n for n, line in enumerate(lines, 1) if word.search(line)]
    shaped = [n for n in hits if not re.match(r"\s*(\*|//|#include|/\*)", lines[n - 1])]
    defined = [n for n in shaped if re.match(r"[A-Za-z#].*[{(,]\s*$|Test\(|.*\)\s*\{|#define", lines[n - 1])]
    return next(iter(defined or shaped or hits), 1)


def link(page, text, target, placed):
    """A Markdown link of a page, as Doxygen is to see it."""
    if re.match(r"[a-z]+:", target):
        return f"[{text}]({target})"
    name, _, anchor = target.partition("#")
    path = os.path.normpath(os.path.join(os.path.dirname(page), name)) if name else page
    if os.path.isfile(os.path.join(TOP, path)) and path.endswith(".md"):
        chapters = page == "tutorials/README.md" and re.match(r"tutorials/\d", path)
        if not anchor and path not in placed and (chapters or path in CHILDREN.get(page, [])):
            placed.add(path)
            return f'@subpage {page_label(path)} "{text}"'
        label = "#" + heading_label(path, anchor) if anchor else ""
        return f"[{text}]({page_label(path)}.html{label})"
    if path.startswith("docs/figures/"):
        return f"[{text}](figures/{os.path.basename(path)})"
    return f"[{text}](source/{path}{'/index' if os.path.isdir(os.path.join(TOP, path)) else ''}.html)"


def cite(match):
    """`name` (path): the path leads to the line of the name."""
    names, space, path = match.groups()
    if not os.path.isfile(os.path.join(TOP, path)):
        return match.group(0)
    line = line_of(path, re.findall(r"`([\w.]+)`", names)[0])
    return f"{names}{space}([{path}](source/{path}.html#L{line}))"


def emphasised(text):
    """Stars as tags, since Doxygen takes them for emphasis only beside a letter; a foldable answer as raw HTML, since
    Doxygen would close it at the end of its first paragraph."""
    code = re.compile(r"(`[^`]*`)")
    parts = code.split(re.sub(r"\*\*([^*`]+)\*\*", r"<b>\1</b>", text))
    for k in range(0, len(parts), 2):
        part = re.sub(r"^\*([^\s*](?:[^*\n]|\n(?!\n))*)\*$", r"<em>\1</em>", parts[k], flags=re.M)
        parts[k] = re.sub(r"(?<![*\\])\*(?=[^\s*])([^*\n]{1,80}?)(?<=[^\s*])\*(?!\*)", r"<em>\1</em>", part)
    raw = r"^(<details>.*?</summary>|</details>)$"
    return re.sub(raw, r"\n@htmlonly[block]\n\1\n@endhtmlonly\n", "".join(parts), flags=re.M)


def filter_markdown(path):
    """Labels on headings, links that Doxygen's pages have; code blocks stay as they are."""
    placed, first, out = set(), True, []
    for part in re.split(r"(^```.*?^```[^\n]*$)", read(path), flags=re.S | re.M):
        if part.startswith("```"):
            out.append(re.sub(r"^```console.*", "```", part))
            continue

        def heading(match):
            nonlocal first
            label = page_label(path) if first else heading_label(path, github_anchor(match.group(2)))
            skip, first = first and path == "README.md", False
            return match.group(0) if skip else f"{match.group(1)} {match.group(2)} {{#{label}}}"

        part = re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", lambda m: link(path, m.group(1), m.group(2), placed), part)
        part = re.sub(r"!\[([^\]]*)\]\((?:[\w./]*/)?figures/([\w.]+)\)", r"![\1](figures/\2)", part)
        part = emphasised(part)
        if docs_math.CHAPTER.match(path):
            part = docs_math.page(part)
        part = CITATION.sub(cite, part)
        out.append(re.sub(r"^(#+) (.*)$", heading, part, flags=re.M))
    return "".join(out)


def filter_header(path):
    """A header joins the group of its folder, so that the module pages list it."""
    group = next((group for prefix, group in GROUPS if path.startswith(prefix)), None)
    return re.sub(r"(@file \S+)", rf"\1 @ingroup {group}", read(path), count=1) if group else read(path)


PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"/><meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{title}</title><link href="{up}style.css" rel="stylesheet"/></head>
<body class="source"><p class="trail">{trail}</p>
{body}
</body></html>
"""


def trail(path):
    """Links to the folders above a source."""
    parts, up = path.split("/"), "../" * (path.count("/") + 1)
    links = [f'<a href="{up}index.html">DualKV reference</a>']
    for n, part in enumerate(parts[:-1], 1):
        links.append(f'<a href="{up}source/{"/".join(parts[:n])}/index.html">{html.escape(part)}</a>')
    return " / ".join(links + [f"<b>{html.escape(parts[-1])}</b>"])


def source_page(path, tracked):
    """The page of a file, lines numbered, or of a folder; and what it links to."""
    if path in tracked and path.endswith(".ipynb"):
        return notebook_page.notebook_page(path, read(path))
    if path in tracked:
        lines = html.escape(read(path)).rstrip("\n").split("\n")
        body = "".join(f'<span id="L{n}">{line}\n</span>' for n, line in enumerate(lines, 1))
        return f"<pre>{body}</pre>", []
    inside = sorted({name[len(path) + 1 :].split("/")[0] for name in tracked if name.startswith(path + "/")})
    folders = {name for name in inside if path + "/" + name not in tracked}
    items = "".join(
        f'<li><a href="{name + "/index" if name in folders else name}.html">{name}</a></li>' for name in inside
    )
    return f"<ul>{items}</ul>", [f"{path}/{name}" for name in inside]


def write_sources(folder, wanted, tracked):
    """Pages of the wanted files and folders, and of everything inside those folders."""
    done = set()
    while wanted:
        path = wanted.pop()
        if path in done or not (path in tracked or any(name.startswith(path + "/") for name in tracked)):
            continue
        done.add(path)
        wanted.extend(filter(None, [os.path.dirname(path)]))  # its trail of folders
        target = os.path.join(folder, "source", path + ("" if path in tracked else "/index") + ".html")
        body, more = source_page(path, tracked)
        wanted.extend(more)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shown = path if path in tracked else path + "/index"
        with open(target, "w", encoding="utf-8") as file:
            file.write(PAGE.format(title=path, up="../" * (shown.count("/") + 1), trail=trail(shown), body=body))


def all_files():
    """Every file that git knows, or would know once it is added; without git, all but build/ and hidden folders."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=TOP, capture_output=True, text=True, check=False
    )
    if listed.returncode == 0:
        return listed.stdout.split()
    found = []
    for here, folders, names in os.walk(TOP):
        folders[:] = [name for name in folders if name != "build" and not name.startswith(".")]
        found += [os.path.relpath(os.path.join(here, name), TOP) for name in names]
    return found


def text_files():
    """Those of them that are text."""
    found = set()
    for name in all_files():
        try:
            read(name)
            found.add(name)
        except (UnicodeDecodeError, FileNotFoundError):
            continue
    return found


def local_links(text):
    urls = map(html.unescape, re.findall(r'\s(?:href|src)="([^"]+)"', text))
    return [url for url in urls if not re.match(r"[a-z]+:|//", url)]


def broken_links(folder):
    """(page, link) of each local link whose file or anchor is not there."""
    texts, wrong = {}, []
    for here, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".html"):
                path = os.path.join(here, name)
                with open(path, encoding="utf-8") as file:
                    texts[path] = file.read()
    anchors = {path: set(re.findall(r'\s(?:id|name)="([^"]+)"', text)) for path, text in texts.items()}
    for path, text in texts.items():
        for url in local_links(text):
            name, _, anchor = url.partition("#")
            target = os.path.normpath(os.path.join(os.path.dirname(path), urllib.parse.unquote(name))) if name else path
            if not os.path.exists(target) or (anchor and target in anchors and anchor not in anchors[target]):
                wrong.append((os.path.relpath(path, folder), url))
    return len(texts), wrong


def widen(folder):
    """Tables of many columns hold figures: their cells are not broken into lines, the table scrolls instead."""

    def classed(match):
        wide = match.group(0).split("</tr>")[0].count("<th") >= 6
        return match.group(0).replace('class="markdownTable"', 'class="markdownTable wide"', 1) if wide else match.group(0)

    for name in os.listdir(folder):
        if name.endswith(".html"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                old = file.read()
            new = re.sub(r'<table class="markdownTable">.*?</table>', classed, old, flags=re.S)
            if new != old:
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(new)


def contents(folder):
    """Fills Doxygen's list of pages, which leaves out all that hang below the main page; a phone has no other tree."""
    chapters = sorted(name for name in os.listdir(os.path.join(TOP, "tutorials")) if re.match(r"\d\d_.*\.md", name))
    tree = {**CHILDREN, "tutorials/README.md": ["tutorials/" + name for name in chapters]}

    def item(path):
        known = tree.get(path, [])
        below = [child for child in known if os.path.exists(os.path.join(folder, page_label(child) + ".html"))]
        title = html.escape(re.search(r"^# (.*)$", read(path), re.M).group(1))
        inner = f"<ul>{''.join(map(item, below))}</ul>" if below else ""
        return f'<li><a href="{page_label(path)}.html">{title}</a>{inner}</li>'

    for name in ("pages.html", "menudata.js"):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            text = file.read().replace("Related Pages", "Contents")
        listed = f"<ul>{item('README.md')}</ul>"
        text = re.sub(r'<div class="textblock">Here is a list.*?</div>', lambda _: listed, text, flags=re.S)
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)


def finish(folder):
    tracked, wanted = text_files(), set()
    shutil.copytree(os.path.join(TOP, "docs", "figures"), os.path.join(folder, "figures"), dirs_exist_ok=True)
    for name in os.listdir(folder):
        if name.endswith(".html"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                wanted.update(
                    url.partition("#")[0][len("source/") : -len(".html")].removesuffix("/index")
                    for url in local_links(file.read())
                    if url.startswith("source/")
                )
    write_sources(folder, sorted(wanted), tracked)
    widen(folder)
    contents(folder)
    pages, wrong = broken_links(folder)
    for page, url in wrong[:40]:
        print(f"docs: {page} links to {url}, which is not there", file=sys.stderr)
    print(f"docs: {pages} pages, {len(wrong)} links lead nowhere")
    return 1 if wrong or not pages else 0


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("filter", "finish"):
        sys.exit("docs_pages.py filter FILE | finish HTML_FOLDER")
    if sys.argv[1] == "finish":
        return finish(sys.argv[2])
    path = os.path.relpath(os.path.abspath(sys.argv[2]), TOP)
    sys.stdout.write(filter_markdown(path) if path.endswith(".md") else filter_header(path))
    return 0


if __name__ == "__main__":
    sys.exit(main())
