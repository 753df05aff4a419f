"""Where the gateway answers differently on purpose. Whatever is not listed here must be the same."""

from tests.conformance.case import CASES

_NOT_A_CONDITION = "an ETag in If-None-Match, * in If-Match, or both headers: refused as AWS refuses them"
_HELD = "the gateway holds conditions as AWS does, also those that this store ignores or answers otherwise"
_NAME = "a resource name has at most 512 bytes, percent-encoded; a rule gives long keys a shorter one"
_STAGED = "a large body goes to the store in parts, so its ETag is that of an upload"
_UNSIGNED = "the gateway answers nobody unsigned"
_EARLY = "refused by the gateway before the store sees it, with the code that S3 has for it"
_FORM = "the gateway puts the file itself and answers in the form S3 has; a type that is not given is not guessed"
_UNVERSIONED = "conditions do not hold on versioned buckets of this store, so nothing is written there"
_TOMBSTONES = "deletes are not conditional here: a tombstone stands where the store would put a delete marker"

# Why, in front of which stores, in which cases.
_ROWS: list[tuple[str, str, list[str]]] = [
    (
        _NOT_A_CONDITION,
        "ceph minio",
        [
            "conditions/put_over_an_object[both]",
            "conditions/put_over_an_object[none-match-other]",
            "conditions/put_over_an_object[none-match-own]",
            "conditions/put_where_nothing_is[both]",
            "conditions/put_where_nothing_is[none-match-other]",
            "conditions/put_where_nothing_is[none-match-own]",
        ],
    ),
    (
        _NOT_A_CONDITION,
        "ceph minio versitygw",
        ["conditions/put_over_an_object[match-any]", "conditions/put_where_nothing_is[match-any]"],
    ),
    (
        _HELD,
        "ceph",
        [
            "conditions/conditional_completion[match-other]",
            "conditions/put_after_a_delete",
            "conditions/put_over_an_object[match-own]",
            "conditions/put_where_nothing_is[match-bare]",
            "conditions/put_where_nothing_is[match-other]",
            "conditions/put_where_nothing_is[match-own]",
            "copies/on_a_condition_of_the_source[match-other]",
            "copies/on_a_condition_of_the_source[not-unmodified]",
        ],
    ),
    (
        _HELD,
        "ceph minio versitygw",
        [
            "conditions/conditional_delete[any]",
            "conditions/conditional_delete[other]",
            "conditions/conditional_delete[own]",
            "copies/on_a_condition_of_the_destination[match-other]",
            "copies/on_a_condition_of_the_destination[none-match-any]",
        ],
    ),
    (
        _HELD,
        "ceph versitygw",
        [
            "conditions/conditional_completion[match-own]",
            "conditions/conditional_completion[none-match-any]",
            "copies/on_a_condition_of_the_source[none-match]",
            "copies/on_a_condition_of_the_source[not-modified]",
        ],
    ),
    (
        _HELD,
        "versitygw",
        [
            "copies/on_a_condition_of_the_source[match]",
            "copies/on_a_condition_of_the_source[modified]",
            "copies/on_a_condition_of_the_source[none-match-other]",
            "copies/on_a_condition_of_the_source[unmodified]",
        ],
    ),
    (_NAME, "ceph minio", ["objects/a_key[long-segments]", "objects/a_key[longest]"]),
    (_STAGED, "ceph minio", ["objects/a_size[large]"]),
    (_UNSIGNED, "ceph", ["addresses/anonymous[service]", "addresses/anonymous_read_of_a_public_object"]),
    (
        _EARLY,
        "ceph",
        [
            "addresses/form_that_is_not_as_signed[bad-signature]",
            "addresses/presigned_and_changed[forever]",
            "multipart/a_part_number[too-high]",
            "objects/content_md5[not-base64]",
        ],
    ),
    (
        _EARLY,
        "ceph minio",
        [
            "addresses/presigned_and_changed[date]",
            "multipart/a_part_number[absent]",
            "multipart/a_part_number[negative]",
            "multipart/a_part_number[nought]",
            "multipart/aborted",
            "multipart/an_upload_that_never_was",
            "objects/a_key[too-long]",
            "objects/a_method_that_objects_do_not_have[patch]",
            "objects/a_method_that_objects_do_not_have[post]",
            "objects/a_wrong_checksum[crc32]",
            "objects/a_wrong_checksum[sha256]",
            "objects/a_wrong_checksum[short]",
            "objects/a_wrong_checksum[two]",
        ],
    ),
    (
        _EARLY,
        "ceph minio versitygw",
        [
            "addresses/a_key_pair_that_nobody_has[empty]",
            "addresses/a_key_pair_that_nobody_has[unknown-key]",
            "addresses/presigned_and_changed[signature]",
            "buckets/a_name[short]",
            "listings/malformed_listing[list-type]",
        ],
    ),
    (_EARLY, "ceph versitygw", ["deletes/a_document[no-objects]", "multipart/parts_named_in_the_wrong_order"]),
    (
        _EARLY,
        "minio",
        [
            "multipart/a_completion_that_is_no_document[empty]",
            "multipart/a_completion_that_is_no_document[other]",
            "multipart/a_completion_that_names_the_wrong_parts[nothing]",
            "multipart/a_part_number[word]",
        ],
    ),
    (_EARLY, "minio versitygw", ["deletes/a_document[empty]", "deletes/a_document[no-key]"]),
    (
        _EARLY,
        "versitygw",
        [
            "buckets/a_name[dots]",
            "deletes/a_document[malformed]",
            "deletes/a_document[other]",
            "deletes/a_document[quiet]",
            "deletes/many[most]",
            "deletes/many[too-many]",
        ],
    ),
    (_FORM, "ceph minio versitygw", ["addresses/form[status-201]"]),
    (
        _FORM,
        "minio versitygw",
        [
            "addresses/form[acl]",
            "addresses/form[fitting]",
            "addresses/form[plain]",
            "addresses/form[redirect]",
            "addresses/form[status-200]",
            "addresses/form_with_the_name_of_the_file",
        ],
    ),
    (_FORM, "versitygw", ["addresses/form[fields]"]),
    (
        _UNVERSIONED,
        "ceph",
        [
            "buckets/an_object_lock_bucket",
            "versions/a_version_is_deleted",
            "versions/a_version_that_is_not_there[nonsense]",
            "versions/a_version_that_is_not_there[null]",
            "versions/an_object_from_before",
            "versions/nothing_is_deleted",
            "versions/several_versions_are_deleted",
            "versions/tags_of_a_version",
            "versions/upload_and_copy_have_versions",
            "versions/version_listing[delimiter]",
            "versions/version_listing[encoded]",
            "versions/version_listing[everything]",
            "versions/version_listing[marker]",
            "versions/version_listing[prefix]",
            "versions/version_listing[two]",
            "versions/versioning_is_suspended",
            "versions/written_twice_and_deleted",
        ],
    ),
    (
        _TOMBSTONES,
        "minio",
        [
            "buckets/an_object_lock_bucket",
            "versions/a_version_is_deleted",
            "versions/an_object_from_before",
            "versions/nothing_is_deleted",
            "versions/several_versions_are_deleted",
            "versions/version_listing[delimiter]",
            "versions/version_listing[encoded]",
            "versions/version_listing[everything]",
            "versions/version_listing[marker]",
            "versions/version_listing[prefix]",
            "versions/version_listing[two]",
            "versions/versioning_is_suspended",
            "versions/written_twice_and_deleted",
        ],
    ),
]

DIFFERENCES: dict[tuple[str, str], str] = {
    (store, case): reason for reason, stores, cases in _ROWS for store in stores.split() for case in cases
}
"""By store and case: the reason. A case that turns out the same is an error, because its reason is out of date."""


def expected(case: str, store: str) -> str | None:
    """Why this case differs in front of this store; None where it must not."""
    assert case in CASES
    return DIFFERENCES.get((store, case))
