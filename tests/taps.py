"""Look on at the releases of a training run."""

from privada.train import step


def tap_releases(monkeypatch, seen=lambda release: None, before=lambda: None):
    """Call `before` ahead of each release of a step, and `seen` with it afterwards."""
    ask = step.release_gradient

    def tapped(run, state):
        before()
        release, state = ask(run, state)
        seen(release)
        return release, state

    monkeypatch.setattr(step, "release_gradient", tapped)


def interrupt(count):
    """Return a function that raises KeyboardInterrupt when it is called for the n-th time."""
    calls = []

    def call(*args, **kwargs):
        calls.append(args)
        if len(calls) == count:
            raise KeyboardInterrupt

    return call
