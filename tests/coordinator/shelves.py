"""The slow, obvious model of an index over several levels: a dict for each."""

from __future__ import annotations

DEVICE = 0

Place = tuple[int, int]  # slot, generation


class Shelves:
    """The model: what is published and what arrives on each level, by digest."""

    def __init__(self, levels: int) -> None:
        self.published: list[dict[bytes, Place]] = [{} for _ in range(levels)]
        self.arriving: list[dict[bytes, Place]] = [{} for _ in range(levels)]

    def publish(self, level: int, digests: list[bytes], offered: list[Place]) -> list[bool]:
        """Blocks enter whose slot is not 0 and whose digest is not there; then they arrive there no more."""
        entered = []
        for digest, place in zip(digests, offered, strict=True):
            enters = place[0] != 0 and digest not in self.published[level]
            entered.append(enters)
            if enters:
                forget_slots(self.arriving[level], [place[0]])
                if level != DEVICE:
                    forget_slots(self.published[level], [place[0]])
                self.arriving[level].pop(digest, None)
                self.published[level][digest] = place
        return entered

    def arrive(self, digests: list[bytes | None], level: int, places: list[Place]) -> None:
        """Blocks are on their way, but for those that are there or on their way there already."""
        for slot, generation in places:
            held = [self.arriving[level], self.published[level]] if level != DEVICE else [self.arriving[level]]
            for shelf in held:
                for digest, place in list(shelf.items()):
                    if place[0] == slot and place[1] != generation:
                        del shelf[digest]
        for arriving, place in zip(digests, places, strict=True):
            if arriving is not None and arriving not in self.published[level] | self.arriving[level]:
                self.arriving[level][arriving] = place

    def found(self, level: int, slot: int, generation: int | None) -> bytes | None:
        """The digest of what is in a slot, or arrives there."""
        for shelf in (self.published[level], self.arriving[level]):
            for digest, place in shelf.items():
                if place[0] == slot and generation in (None, place[1]):
                    return digest
        return None

    def land(self, level: int, places: list[Place]) -> list[bool]:
        """What arrives is published."""
        landed = []
        for place in places:
            digests = [digest for digest, there in self.arriving[level].items() if there == place]
            landed.append(bool(digests))
            for digest in digests:
                del self.arriving[level][digest]
                self.published[level][digest] = place
        return landed

    def lose(self, level: int, slot: int, generation: int | None) -> None:
        """A place is no more."""
        for shelf in (self.published[level], self.arriving[level]):
            for digest, place in list(shelf.items()):
                if place[0] == slot and generation in (None, place[1]):
                    del shelf[digest]


def forget_slots(shelf: dict[bytes, Place], gone: list[int]) -> None:
    """Nothing is in these slots any more."""
    for digest, place in list(shelf.items()):
        if place[0] in gone:
            del shelf[digest]
