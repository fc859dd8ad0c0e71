# %% [markdown]
# # Who was in the data?
#
# A network with far more weights than records learns its records by heart. Its loss then tells who
# they were: it is small on them and large on others. The same network, trained with privacy, tells
# no more than its epsilon allows. (The losses are taken here from images that are public. On
# private ones the figure would be a look that nobody has paid for.)

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits

import privada as pv

images, labels = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(labels))
inside, outside = order[:250], order[250:500]
inputs = torch.tensor(images / 16).float()
targets = torch.tensor(labels).clone()
# one label in five is wrong, which cannot be learned but by heart
wrong = torch.rand(len(targets), generator=torch.Generator().manual_seed(0)) < 0.2
targets[wrong] = (targets[wrong] + 1) % 10


def network():
    return torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))


plain = network()
optimizer = torch.optim.Adam(plain.parameters(), lr=0.003)
for _ in range(300):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(plain(inputs[inside]), targets[inside]).backward()
    optimizer.step()

private = pv.Trainer(
    network(),
    torch.nn.CrossEntropyLoss(),
    (inputs[inside], targets[inside]),
    method=pv.methods.DPAdam(lr=0.003),
    batch_size=125,
    steps=100,
    budget=pv.Budget(epsilon=2.0, delta=1e-3),
).fit()


# %%
def losses(model, places):
    with torch.no_grad():
        return torch.nn.functional.cross_entropy(
            model(inputs[places]), targets[places], reduction="none"
        ).numpy()


figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True)
for axis, model, name in zip(axes, (plain, private.model), ("plain", "epsilon 2"), strict=True):
    for places, who in ((inside, "in the data"), (outside, "not in it")):
        found = np.log10(losses(model, places) + 1e-8)
        axis.hist(found, bins=30, alpha=0.6, label=who)
    axis.set_title(name)
    axis.set_xlabel("loss, as a power of ten")
axes[0].set_ylabel("images")
axes[0].legend()
plt.show()

# %% [markdown]
# Whoever guesses "in the data" where the loss is below a threshold is right as often as this curve
# says. Below the dotted line is what privacy promises to everybody, for every attack: no more true
# guesses than e^epsilon times the false ones, plus delta.

# %%
figure, axis = plt.subplots(figsize=(4.5, 4.2))
for model, name in ((plain, "plain"), (private.model, "epsilon 2")):
    one, other = losses(model, inside), losses(model, outside)
    thresholds = np.sort(np.concatenate([one, other]))
    false = [(other <= each).mean() for each in thresholds]
    true = [(one <= each).mean() for each in thresholds]
    axis.plot(false, true, label=name)
share = np.linspace(0, 1, 200)
# the promise in both directions
bound = np.minimum(np.exp(2) * share + 1e-3, 1 - np.exp(-2) * (1 - 1e-3 - share))
axis.plot(share, bound.clip(0, 1), ":", color="grey", label="most at epsilon 2")
axis.set_xlabel("guessed, and was not in the data")
axis.set_ylabel("guessed, and was in it")
axis.legend(loc="lower right")
plt.show()
