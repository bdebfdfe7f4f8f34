"""Mutants of the clients of object stores, and of the work that commits of files leave for later."""

from tests.mutants.mutant import Mutant

_S3 = "tests/state/store/test_s3_store.py"
_BY_OBSTORE = "tests/state/store/test_s3_by_obstore.py"
_AFTER = "tests/barrier_runtime/connectors/files/test_after_commit.py"

MUTANTS = (
    Mutant(
        "conflict-means-there",
        "409 says nothing about the object of a conditional put: the outcome is unknown",
        "state/store/s3/by_obstore.py",
        "return super()._says_exists(error) and answer_of(error)[1] == 412",
        "return super()._says_exists(error)",
        (f"{_S3}::test_a_conditional_put_tells_three_outcomes_apart_and_reaches_the_store_once",),
    ),
    Mutant(
        "lost-answer-means-nothing-there",
        "a conditional put whose answer is lost may have created the object",
        "state/store/clouds.py",
        "            return PutOutcome.UNKNOWN  # the object may exist now, or later\n",
        "            raise trouble\n",
        (f"{_S3}::test_a_conditional_put_tells_three_outcomes_apart_and_reaches_the_store_once",),
    ),
    Mutant(
        "client-repeats-requests",
        "obstore repeats no request by itself: a conditional put reaches the store once",
        "state/store/clouds.py",
        '"retry_config": {"max_retries": 0, ',
        '"retry_config": {"max_retries": 2, ',
        (f"{_S3}::test_a_conditional_put_tells_three_outcomes_apart_and_reaches_the_store_once",),
    ),
    Mutant(
        "expired-credentials-stay",
        "expired credentials are read from their source again before a request fails",
        "state/store/s3/by_obstore.py",
        "            self._access.renew(self._client)\n",
        "",
        (f"{_BY_OBSTORE}::test_expired_credentials_are_read_again",),
    ),
    Mutant(
        "refused-deletion-is-done",
        "a deletion that the store refused in part is sent again by boto3, which names the keys",
        "state/store/s3/by_obstore.py",
        "                self.by_boto3.delete(key for key, _ in batch)\n",
        "                pass\n",
        (f"{_S3}::test_an_object_that_is_not_deleted_is_told_also_behind_an_absent_one",),
    ),
    Mutant(
        "parts-of-two-versions",
        "an object that is read in parts is read as one version",
        "state/store/clouds.py",
        "            take(first, self._part(key, first, min(first + _PART_BYTES, end), tag)[0])\n",
        "            take(first, self._part(key, first, min(first + _PART_BYTES, end), None)[0])\n",
        (f"{_BY_OBSTORE}::test_an_object_that_is_replaced_while_it_is_read_is_not_mixed",),
    ),
    Mutant(
        "commit-waits-for-deletions",
        "no commit waits for the deletion of staged objects",
        "barrier_runtime/connectors/files/sink/sink.py",
        "at_once=self._last or not self._staging.leaves_staged",
        "at_once=True",
        (f"{_AFTER}::test_a_commit_sends_one_request_for_a_file_and_one_for_its_record",),
    ),
    Mutant(
        "staged-stays",
        "staged objects of shown files are deleted behind the commit",
        "barrier_runtime/connectors/files/sink/sink.py",
        "        self._later(lambda: self._staging.drop_shown(files))\n",
        "",
        (f"{_AFTER}::test_the_last_commit_of_an_input_leaves_nothing_staged",),
    ),
)
