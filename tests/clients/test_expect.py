"""`Expect: 100-continue`, which boto3 sends with every upload and follows strictly."""

import pytest

import wire
from conftest import make_client
from expect import absent, body_of


def expecting(raw, path, body, **options):
    return raw.prepare("PUT", path, headers={"Expect": "100-continue"}, body=body, **options)[0]


def test_continue_is_sent_before_the_body(raw, s3, bucket, key):
    with raw.connect() as connection:
        connection.send(expecting(raw, f"/{bucket}/{key}", b"body"))
        assert connection.read_head().status == 100
        connection.send(b"body")
        assert connection.read().status == 200
    assert body_of(s3, bucket, key) == b"body"


def test_body_sent_without_waiting(raw, s3, bucket, key):
    with raw.connect() as connection:
        connection.send(expecting(raw, f"/{bucket}/{key}", b"body") + b"body")
        assert connection.read().status == 200
    assert body_of(s3, bucket, key) == b"body"


def test_error_is_sent_before_the_body(raw, s3, keys, bucket, key):
    """An error that follows from the head is sent at once; the unread body must not stay on the connection."""
    for signer, path, status in (
        (wire.Signer(keys[0], "wrong"), f"/{bucket}/{key}", 403),
        (None, f"/{bucket}-no-such/{key}", 404),
    ):
        with raw.connect(timeout=5) as connection:
            connection.send(expecting(raw, path, b"x" * 1000, signer=signer))
            response = connection.read_head()
            if response.status == 100:  # allowed, if wasteful
                connection.send(b"x" * 1000)
                response = connection.read_head()
            else:
                assert response.closes, "a final answer without 100 must end the connection"
            assert response.status == status
    absent(s3, bucket, key)


@pytest.mark.parametrize("first", ["empty body", "refused"])
def test_boto3_on_one_connection(keys, monkeypatch, bucket, key, first):
    """boto3's next PUT would hang after a final response without `100 Continue` on a persistent connection."""
    monkeypatch.delenv("BOTO_EXPERIMENTAL__NO_EMPTY_CONTINUE", raising=False)
    client = make_client(*keys, max_pool_connections=1, read_timeout=4)
    for round in range(3):
        if first == "refused":
            with pytest.raises(client.exceptions.ClientError):
                client.put_object(Bucket=bucket + "-no-such", Key=key, Body=b"x" * 1000)
        else:
            client.put_object(Bucket=bucket, Key=f"{key}-empty", Body=b"")
        client.put_object(Bucket=bucket, Key=key, Body=f"round {round}".encode() * 1000)
    assert body_of(client, bucket, key).startswith(b"round 2")
