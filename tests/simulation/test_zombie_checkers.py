"""Tests of the checker of coordinators that no longer lead."""

from histories import COORDINATOR, PATHS, History, data
from judged import Case, Table, check, each_case, untold
from zombie_checkers import ZOMBIE_CHECKERS


def read_of_its_successor(*, found: bool | None = True, answered: bool = True) -> History:
    """Reads, as coordinator-1, the position of the successor's record, and answers the read."""
    history = History(more=ZOMBIE_CHECKERS).by(COORDINATOR).fence()
    history.request("get", PATHS.log_record(2)).lead("coordinator-2")
    return history.get_answer(2, found) if answered else history


def looked_before(found: bool | None) -> History:
    """Reads twice as coordinator-1, which knows the successor before the first read, for a delete, is answered."""
    history = read_of_its_successor(answered=False).request("get", PATHS.log_record(2)).get_answer(2, True)
    return history.get_answer(2, found)


ZOMBIES: Table = {
    "ZombiesDeleteNothing": (
        Case(
            "it has read of its successor",
            lambda: read_of_its_successor().request("delete", data("file")),
            f"coordinator-1 deletes {data('file')} after it was told that coordinator-2 leads",
        ),
        Case("it looked too early", lambda: read_of_its_successor(found=False).request("delete", data("file"))),
        Case("its look failed", lambda: read_of_its_successor(found=None).request("delete", data("file"))),
        Case(
            "it has asked, and is not answered",
            lambda: read_of_its_successor(answered=False).request("delete", data("file")),
        ),
        Case(
            "it had looked before it knew",
            lambda: looked_before(False).request("delete", data("file")).request("delete", data("other")),
        ),
        Case(
            "it looked before it knew, and does more than that delete",
            lambda: (
                looked_before(False)
                .request("delete", data("file"))
                .request("get", PATHS.log_record(3))
                .get_answer(3, False)
                .request("delete", data("other"))
            ),
            f"coordinator-1 deletes {data('other')} after it was told that coordinator-2 leads",
            once=True,
        ),
        Case(
            "it looked before it knew, and that failed",
            lambda: looked_before(None).request("delete", data("file")),
            f"coordinator-1 deletes {data('file')} after it was told that coordinator-2 leads",
        ),
        Case(
            "its successor",
            lambda: (
                read_of_its_successor(found=False)
                .request("get", PATHS.log_record(2), "coordinator-2")
                .get_answer(2, True, "coordinator-2")
                .request("delete", data("other"), "coordinator-2")
            ),
        ),
    ),
}


@each_case(ZOMBIES)
def test_judges_of_who_leads_no_more(judge: str, case: Case) -> None:
    """I7: the checker reports exactly the coordinators that continue to delete."""
    check(judge, case)


def test_each_is_shown_to_speak_and_to_be_silent() -> None:
    assert untold(ZOMBIES, {each.__name__ for each in ZOMBIE_CHECKERS}) == []
