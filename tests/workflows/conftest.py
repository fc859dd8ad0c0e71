"""Tables of visits, of which a patient may have several."""

import numpy as np
import pytest

from tests.schemas import SCHEMA

PATIENTS = 400


def visits(patients=PATIENTS, seed=0, first=0):
    """Return the lines of a table: one to six visits of each patient."""
    rng = np.random.default_rng(seed)
    lines = ["patient,age,ward,sick"]
    for patient in range(first, first + patients):
        age = rng.uniform(0, 100)
        for _ in range(rng.integers(1, 7)):
            now, ward = age + rng.uniform(-1, 1), rng.choice(["a", "b"])
            sick = "yes" if now + 20 * (ward == "a") > 60 else "no"
            lines.append(f"p{patient},{now:.2f},{ward},{sick}")
    return lines


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with visits.csv and s.toml, which says nothing of the patients."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "visits.csv").write_text("\n".join(visits()) + "\n")
    (tmp_path / "s.toml").write_text(SCHEMA)
    return tmp_path
