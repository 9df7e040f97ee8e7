"""The grammar of all figures, and the few shapes that they are made of.

The prompt is blue, each response has a warm colour and a letter of its own, copies that sharing saves are grey and
hatched, what is masked is empty.  A figure carries its own background, so that it can be read on a light page and on a
dark one; it is 480 units wide with letters of 13 units, so that it can be read on a phone.  Coordinates are rounded and
nothing depends on the day or the machine: the same input gives the same bytes.
"""

from html import escape

WIDTH = 480
RESPONSES = "abcd"

NAMES = ("ink", "soft", "line", "p", "on_p", "ghost", "hatch", "bg")
LIGHT = dict(zip(NAMES, "#16202c #566373 #c3ccd8 #0072b2 #fff #dfe4ea #8b96a5 #fff".split()))
DARK = dict(zip(NAMES, "#e7ecf2 #a5b1c0 #46515f #4aa8e0 #0a0e13 #2c3540 #77859a #12171e".split()))

# What changes with the page.  Colours are written out for both, since programs for slides know no CSS variables.
PAGE = """text,.tip{fill:INK}.bg{fill:BG}.soft{fill:SOFT}.on-p{fill:ON_P}.t-p,.p{fill:P}.neutral,.copy{fill:GHOST}
.ghost,.hatch{stroke:HATCH}.empty,.thin{stroke:LINE}.frame,.l{stroke:INK}.box{stroke:SOFT}.lp{stroke:P}
"""


def page(colours):
    """The rules of PAGE with the colours filled in; each name stands between a colon and a closing brace."""
    rules = PAGE
    for name, colour in colours.items():
        rules = rules.replace(":%s}" % name.upper(), ":%s}" % colour)
    return rules


STYLE = (
    """
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;font-size:13px}
.b{font-weight:600}.mono{font-family:ui-monospace,Menlo,Consolas,monospace}.on-r{fill:#111}
.ra{fill:#e69f00}.rb{fill:#d9662b}.rc{fill:#d889b4}.rd{fill:#e8dc5a}
.ghost{fill:url(#copy);stroke-width:.6}.empty{fill:none;stroke-width:.6}.hatch{stroke-width:1.6}
.frame{fill:none;stroke-width:1.5}.box{fill:none;stroke-width:1}
.l{fill:none;stroke-width:1.2}.thin{fill:none;stroke-width:1}
.dash{stroke-dasharray:5 4}.lp{fill:none;stroke-width:2.4}.la{stroke:#e69f00;fill:none;stroke-width:2.4}
.lb{stroke:#d9662b;fill:none;stroke-width:2.4}.lc{stroke:#d889b4;fill:none;stroke-width:2.4}
"""
    + page(LIGHT)
    + "@media (prefers-color-scheme:dark){\n"
    + page(DARK)
    + "}\n"
)

DEFINITIONS = """<defs><pattern id="copy" width="6" height="6" patternUnits="userSpaceOnUse" \
patternTransform="rotate(45)"><rect class="copy" width="6" height="6"/><path class="hatch" d="M0 0V6"/></pattern>\
<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">\
<path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>"""


def n(x):
    """A coordinate: at most two decimals, no trailing zero, no minus zero."""
    return f"{round(x, 2) + 0:.2f}".rstrip("0").rstrip(".")


class Drawing:
    """A figure being drawn; y grows downwards."""

    def __init__(self, height, title, description):
        self.height, self.title, self.description, self.parts = height, title, description, []

    def rect(self, x, y, width, height, kind, radius=0):
        r = f' rx="{n(radius)}"' if radius else ""
        self.parts.append(f'<rect class="{kind}" x="{n(x)}" y="{n(y)}" width="{n(width)}" height="{n(height)}"{r}/>')

    def text(self, x, y, words, kind="", anchor="start", size=None):
        wide = len(str(words)) * (size or 13) * (0.65 if " b" in " " + kind else 0.6)  # in a wide font
        left = x - {"start": 0, "middle": wide / 2, "end": wide}[anchor]
        if left < 0 or left + wide > WIDTH or y > self.height - 4:
            raise ValueError(f"{self.title}: '{words}' from {left:.0f} to {left + wide:.0f} at {y} leaves the figure")
        attributes = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor != "start" else "")
        attributes += f' style="font-size:{n(size)}px"' if size else ""
        self.parts.append(f'<text x="{n(x)}" y="{n(y)}"{attributes}>{escape(str(words), quote=False)}</text>')

    def notes(self, x, y, *lines):
        """Lines of text under each other; one that begins with * is bold, one with ~ is soft."""
        for k, line in enumerate(lines):
            kind = {"*": "b", "~": "soft"}.get(line[:1], "")
            self.text(x, y + 18 * k, line[1:] if kind else line, kind)

    def path(self, d, kind):
        self.parts.append(f'<path class="{kind}" d="{d}"/>')

    def line(self, points, kind="l", tip=False):
        d = "M" + "L".join(f"{n(x)} {n(y)}" for x, y in points)
        self.parts.append(f'<path class="{kind}" d="{d}"' + (' marker-end="url(#tip)"/>' if tip else "/>"))

    def shape(self, points, kind):
        self.path("M" + "L".join(f"{n(x)} {n(y)}" for x, y in points) + "z", kind)

    def box(self, x, y, width, height, words, kind="box", text=""):
        """A box with a line of text, or several, in its middle."""
        lines = [words] if isinstance(words, str) else words
        self.rect(x, y, width, height, kind, 4)
        for k, line in enumerate(lines):
            self.text(x + width / 2, y + height / 2 + 4.5 + 16 * (k - (len(lines) - 1) / 2), line, text, "middle")

    def svg(self):
        return "\n".join(
            [
                (
                    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {n(self.height)}" width="640" '
                    f'height="{n(self.height * 640 / WIDTH)}" role="img" aria-labelledby="title desc">'
                ),
                f'<title id="title">{escape(self.title, quote=False)}</title>',
                f'<desc id="desc">{escape(self.description, quote=False)}</desc>',
                f"<style>{STYLE}</style>",
                DEFINITIONS,
                f'<rect class="bg" width="{WIDTH}" height="{n(self.height)}"/>',
                *self.parts,
                "</svg>",
                "",
            ]
        )


def kind_of(letter):
    """The colour of a segment's letter: p and further prompts blue, a to d warm."""
    return "r" + letter if letter in RESPONSES else "p"


def on(letter):
    """The colour of text on that colour."""
    return "on-r" if letter in RESPONSES else "on-p"


class Axis:
    """From values to coordinates, linear or logarithmic."""

    def __init__(self, low, high, at_low, at_high, logarithmic=False):
        from math import log

        self.f = log if logarithmic else float
        self.low, self.high, self.at_low, self.at_high = self.f(low), self.f(high), at_low, at_high

    def __call__(self, value):
        share = (self.f(value) - self.low) / (self.high - self.low)
        return self.at_low + share * (self.at_high - self.at_low)
