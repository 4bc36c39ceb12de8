"""What was done and what is left, as lines for a person: one per kind, with a count."""

_MAX_LEFT = 20


class Report:
    """Prints as it goes. `left` holds what is still there, and why."""

    def __init__(self, *, dry_run: bool) -> None:
        self._verb = "would be removed" if dry_run else "removed"
        self._dry_run = dry_run
        self.left: list[str] = []

    def removed(self, kind: str, count: int, note: str = "") -> None:
        """So many of a kind went."""
        print(f"{kind:<34} {count:>6} {self._verb}{f' ({note})' if note else ''}", flush=True)

    def kept(self, what: str, why: str) -> None:
        """Something stays, and should."""
        print(f"{what}: stays: {why}", flush=True)

    def leave(self, what: str, why: str) -> None:
        """Something is still there that should not be."""
        self.left.append(f"{what}: {why}")

    def end(self) -> int:
        """Prints what is left; the exit code."""
        for line in self.left[:_MAX_LEFT]:
            print(f"left: {line}")
        if more := len(self.left[_MAX_LEFT:]):
            print(f"left: {more} more")
        if self.left:
            print("Not done: run it again when the above is seen to.")
        elif self._dry_run:
            print("Nothing was changed.")
        else:
            print("Done. Where kubelets or node pools give new nodes the taint, take it out there.")
        return 1 if self.left else 0
