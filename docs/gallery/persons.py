# %% [markdown]
# # A row or a person
#
# Patients with one visit or with sixty. A promise for each visit is a weak one for those who come
# often, and `groups=` makes the patient what is protected.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch

import privada as pv

random = np.random.default_rng(0)  # made up
visits = random.geometric(0.1, size=3000)
patient = np.repeat(np.arange(len(visits)), visits)
rows = random.normal(size=(len(patient), 6)).astype("float32")
sick = (rows @ np.array([1, -1, 0.5, 0, 0, 0], "float32") > 0).astype("int64")

figure, axis = plt.subplots(figsize=(7, 2.6))
axis.hist(visits, bins=range(1, 61))
axis.set_xlabel("visits of a patient")
axis.set_ylabel("patients")
plt.show()

# %% [markdown]
# With noise for epsilon 1 a visit, a patient with k visits has the cost of k visits at once. It is
# computed here for a Gaussian mechanism whose sensitivity is k times as large, without sampling,
# where groups compose exactly.

# %%
multiplier = pv.accounting.noise_multiplier(epsilon=1.0, delta=1e-5, sampling_rate=1.0, steps=1)
most = range(1, 31)
costs = [
    pv.accounting.epsilon(noise_multiplier=multiplier / k, sampling_rate=1.0, steps=1, delta=1e-5)
    for k in most
]
figure, axis = plt.subplots(figsize=(7, 3))
axis.plot(most, costs)
axis.axhline(1, linestyle=":", color="grey")
axis.set_xlabel("visits of a patient")
axis.set_ylabel("epsilon of the patient")
plt.show()


# %% [markdown]
# A budget of epsilon 0.2, spent on each visit and on each patient, with a tenth of them in a step.
# The second costs accuracy and means what it says.


# %%
def train(batch_size, **settings):
    trainer = pv.Trainer(
        torch.nn.Linear(6, 2),
        torch.nn.CrossEntropyLoss(),
        (rows, sick),
        method=pv.methods.DPSGD(lr=1.0),
        batch_size=batch_size,
        steps=60,
        budget=pv.Budget(epsilon=0.2, delta=1e-5),
        **settings,
    ).fit()
    with torch.no_grad():
        new = random.normal(size=(5000, 6)).astype("float32")
        truth = new @ np.array([1, -1, 0.5, 0, 0, 0], "float32") > 0
        guesses = trainer.model(torch.tensor(new)).argmax(1).numpy()
    return trainer, (guesses == truth).mean()


by_visit, reached = train(len(rows) / 10, unit="visit")
print(f"{by_visit.statement().unit}: multiplier {by_visit.noise_multiplier:.2f}, {reached:.3f}")
by_patient, reached = train(len(visits) / 10, unit="patient", groups=patient, rows_per_unit=8)
print(f"{by_patient.statement().unit}: multiplier {by_patient.noise_multiplier:.2f}, {reached:.3f}")
