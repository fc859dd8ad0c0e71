# %% [markdown]
# # What a search for settings costs
#
# Ten models are ten looks. Where only the best of them is released, a look costs less, but never
# nothing. These figures need no data.

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import privada as pv

run = {"noise_multiplier": 4.0, "sampling_rate": 250 / 60_000, "steps": 2500, "delta": 1e-6}
counts = [2, 5, 10, 20, 50, 100]
ways: dict[str, list[float]] = {}
for candidates in counts:
    for price in pv.selection.price(candidates=candidates, **run):
        ways.setdefault(price.how, []).append(price.epsilon)

figure, axis = plt.subplots(figsize=(7, 4))
for how, prices in sorted(ways.items()):
    axis.plot(counts[: len(prices)], prices, "o-", label=how)
axis.axhline(pv.accounting.epsilon(**run), linestyle=":", color="grey")
axis.annotate("one run", (counts[0], pv.accounting.epsilon(**run)), va="bottom")
axis.set_xscale("log")
axis.set_yscale("log")
axis.set_xlabel("candidates")
axis.set_ylabel("epsilon of the search")
axis.legend(fontsize="small")
plt.show()

# %% [markdown]
# A search that pays, within one epsilon: every run and every score is in the figure.

# %%
images, labels = load_digits(return_X_y=True)


def recipe(lr, clip):
    return pv.selection.Candidate(
        model=torch.nn.Linear(64, 10),
        loss=torch.nn.CrossEntropyLoss(),
        method=pv.methods.DPSGD(lr=lr, clip=clip),
        batch_size=128,
        epochs=5,
    )


found = pv.selection.select(
    recipe,
    (images / 16, labels),
    space={"lr": [0.5, 2.0, 8.0], "clip": [0.5, 1.0]},
    budget=pv.Budget(epsilon=2.0, delta=1e-4),
)
print(found.settings, f"score {found.score:.3f}, with noise")
print(found.price)
