# %% [markdown]
# # 03 · One mask
#
# *Lab of [chapter 03](../tutorials/03_one_mask.md), 15 minutes, no GPU.* The whole mask in one number for each key: row i sees row j exactly when `j <= i` and `i < end[j]`.

# %%
predict("filled squares of the mask of p p p a a b b", 24)
predict("the position of row 5, the first token of b", 3)
predict("end of row 3, the first token of a", 5)

# %% [markdown]
# ## Your turn: `end` and `position` of a forest
#
# Segments come depth first: `parent[s]` is an earlier segment or -1, `length[s]` its rows, and the descendants of a segment come right after it. `end` of a row is one past the last row of everything below its segment; `position` counts the rows on its own path, from 0.


# %%
def end_and_position(parent, length):
    S = len(parent)
    start = [sum(length[:s]) for s in range(S + 1)]
    last = [start[s + 1] for s in range(S)]  # one past the segment's own rows
    base = [0] * S  # rows of its path before it
    for s in reversed(range(S)):  # children come after their parent, so their `last` is final here
        if parent[s] >= 0:
            # hole last: let last[parent[s]] reach as far as last[s]
            last[parent[s]] = max(last[parent[s]], last[s])
            # end
    for s in range(S):
        if parent[s] >= 0:
            # hole base: set base[s], the number of rows on the path before segment s, from its parent's
            base[s] = base[parent[s]] + length[parent[s]]
            # end
    end = [last[s] for s in range(S) for _ in range(length[s])]
    position = [base[s] + n for s in range(S) for n in range(length[s])]
    return end, position


# %%
forests = {
    "seven tokens": ([-1, 0, 0], [3, 2, 2]),
    "a conversation": ([-1, 0, 1, 1, 0], [3, 2, 2, 1, 4]),
    "two groups, one response empty": ([-1, 0, 0, -1, 3, 3, 3], [3, 2, 2, 2, 1, 0, 3]),
}
rng = np.random.default_rng(3)
for n in range(20):  # random depth-first forests
    parent, path = [], []
    for s in range(8):
        path = path[: rng.integers(0, len(path) + 1)]
        parent.append(path[-1] if path else -1)
        path.append(s)
    forests["random forest %d" % n] = (parent, rng.integers(0, 4, 8).tolist())
for name, (parent, length) in forests.items():
    layout = dk.Layout(parent, length)
    end, position = end_and_position(parent, length)
    own = np.repeat(np.cumsum(length), length)
    check(
        "end of " + name,
        np.array(end, int),
        layout.end,
        mistakes=[
            (own, "end is that of the row's own segment: a prompt must reach to the end of its last response"),
            (
                np.full(layout.rows, layout.rows),
                "every row sees everything: siblings and other groups must be hidden",
            ),
            (layout.end - 1, "end is one past the last row"),
        ],
    )
    check(
        "position in " + name,
        np.array(position, int),
        layout.position,
        mistakes=[
            (np.arange(layout.rows), "that is the packed row; a path does not count the siblings' rows"),
            (
                np.concatenate([np.arange(r) for r in length] + [[]]).astype(int),
                "a response's positions go on where its prompt ends",
            ),
        ],
    )

# %%
group = seven()
reveal(
    "filled squares of the mask of p p p a a b b",
    int(group.mask().sum()),
    "1 + 2 + 3 for p, 4 + 5 for a, 4 + 5 for b.",
)
reveal(
    "the position of row 5, the first token of b",
    int(group.position[5]),
    "in its own text it comes right after the prompt; the two tokens of a are not on its path.",
)
reveal("end of row 3, the first token of a", int(group.end[3]), "rows 3 and 4 see it; 5 is one past the last.")
print("end     ", group.end.tolist())
print("position", group.position.tolist())

# %% [markdown]
# ## See it
#
# Each column of a mask is one unbroken run, from the diagonal down to `end[j]`: that is why one number for each key is enough. On the right, a conversation: after the first answer a, two second turns b and c were tried; d is another first answer.

# %%
figure, axs = axes(7.6, 3.9, 2)
for ax, name in zip(axs, ("seven tokens", "a conversation")):
    layout = dk.Layout(*forests[name])
    draw_mask(ax, layout, title=name)
    for j in range(layout.rows):
        ax.plot([j, j + 1], [layout.end[j]] * 2, color=INK, linewidth=2.2, clip_on=False)
show(figure, "two masks with a bar under each column at end[j]; in the conversation b and c see a, d does not")

# %% [markdown]
# ## Break it
#
# One plausible rule is `end[j] = T` for everything, plain causality. What would b have learned from a then? Count the squares that leak.

# %%
causal = np.tril(np.ones((7, 7), bool))
leaks = np.argwhere(causal & ~group.mask())
print(
    "plain causality adds %d pairs: %s"
    % (
        len(leaks),
        ", ".join(
            "row %d (%s) sees row %d (%s)" % (i, letters(group)[i], j, letters(group)[j]) for i, j in leaks
        ),
    )
)

# %% [markdown]
# A forest that is not listed depth first has columns with gaps, and the library refuses it in a sentence:

# %%
try:
    dk.Layout([-1, 0, 0, 1], [3, 2, 2, 1])
except dk.DualKVError as error:
    print(error.status, "-", error)

# %% [wrong] last | end is that of the row's own segment
# pass

# %% [wrong] last | the first difference is at
# last[parent[s]] = last[s]

# %% [wrong] base | a response's positions go on where its prompt ends
# pass

# %% [wrong] base | that is the packed row
# base[s] = start[s]
