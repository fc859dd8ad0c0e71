"""The papers' own experiments, on public names only."""
