"""Unsupported operations return 501 NotImplemented, or S3's error for a bucket without the feature, and have no effect.

Reading a setting that cannot be set returns S3's response for a bucket where it was never set, and removing it succeeds.
They never pretend to work.

When a feature is implemented, its lines move from here to its own test file.
"""

import pytest

import sums
from expect import absent, body_of, refused, s3_error

NS = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'

BUCKET_WRITES = {
    "acl": f"<AccessControlPolicy {NS}><Owner><ID>x</ID></Owner><AccessControlList/></AccessControlPolicy>",
    "policy": '{"Version":"2012-10-17","Statement":[]}',
    "cors": f"<CORSConfiguration {NS}><CORSRule><AllowedMethod>GET</AllowedMethod><AllowedOrigin>*</AllowedOrigin></CORSRule></CORSConfiguration>",
    "website": f"<WebsiteConfiguration {NS}><IndexDocument><Suffix>i.html</Suffix></IndexDocument></WebsiteConfiguration>",
    "lifecycle": f"<LifecycleConfiguration {NS}><Rule><ID>r</ID><Filter/><Status>Enabled</Status><Expiration><Days>1</Days></Expiration></Rule></LifecycleConfiguration>",
    "notification": f"<NotificationConfiguration {NS}/>",
    "encryption": f"<ServerSideEncryptionConfiguration {NS}><Rule><ApplyServerSideEncryptionByDefault><SSEAlgorithm>AES256</SSEAlgorithm></ApplyServerSideEncryptionByDefault></Rule></ServerSideEncryptionConfiguration>",
    "replication": f"<ReplicationConfiguration {NS}><Role>r</Role><Rule><Status>Enabled</Status><Destination><Bucket>b</Bucket></Destination></Rule></ReplicationConfiguration>",
    "logging": f"<BucketLoggingStatus {NS}/>",
    "tagging": f"<Tagging {NS}><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>",
    "accelerate": f"<AccelerateConfiguration {NS}><Status>Enabled</Status></AccelerateConfiguration>",
    "requestPayment": f"<RequestPaymentConfiguration {NS}><Payer>Requester</Payer></RequestPaymentConfiguration>",
    "object-lock": f"<ObjectLockConfiguration {NS}><ObjectLockEnabled>Enabled</ObjectLockEnabled></ObjectLockConfiguration>",
    "ownershipControls": f"<OwnershipControls {NS}><Rule><ObjectOwnership>BucketOwnerEnforced</ObjectOwnership></Rule></OwnershipControls>",
    "publicAccessBlock": f"<PublicAccessBlockConfiguration {NS}><BlockPublicAcls>true</BlockPublicAcls></PublicAccessBlockConfiguration>",
}

OBJECT_WRITES = {
    ("PUT", "acl="): BUCKET_WRITES["acl"],
    ("PUT", "legal-hold="): f"<LegalHold {NS}><Status>ON</Status></LegalHold>",
    ("PUT", "retention="): f"<Retention {NS}><Mode>GOVERNANCE</Mode><RetainUntilDate>2099-01-01T00:00:00Z</RetainUntilDate></Retention>",
    ("POST", "restore="): f"<RestoreRequest {NS}><Days>1</Days></RestoreRequest>",
    ("POST", "select=&select-type=2"): f"<SelectObjectContentRequest {NS}><Expression>select * from s3object</Expression><ExpressionType>SQL</ExpressionType><InputSerialization><CSV/></InputSerialization><OutputSerialization><CSV/></OutputSerialization></SelectObjectContentRequest>",
}

# Answers other than 501 NotImplemented: those of a bucket without the feature.
WRITE_ANSWERS = {
    "acl": ("AccessControlListNotSupported", 400),
    "acl=": ("AccessControlListNotSupported", 400),
    "legal-hold=": ("InvalidRequest", 400),
    "retention=": ("InvalidRequest", 400),
    "restore=": ("InvalidObjectState", 403),
    "select=&select-type=2": ("MethodNotAllowed", 405),
    "torrent=": ("MethodNotAllowed", 405),
}

# The error code of a setting that was never set.
UNSET = {
    "policy": "NoSuchBucketPolicy",
    "cors": "NoSuchCORSConfiguration",
    "website": "NoSuchWebsiteConfiguration",
    "lifecycle": "NoSuchLifecycleConfiguration",
    "encryption": "ServerSideEncryptionConfigurationNotFoundError",
    "replication": "ReplicationConfigurationNotFoundError",
    "tagging": "NoSuchTagSet",
    "object-lock": "ObjectLockConfigurationNotFoundError",
    "publicAccessBlock": "NoSuchPublicAccessBlockConfiguration",
}

# The root element of a setting that has a default, and an element that it must have.
DEFAULTS = {
    "acl": ("AccessControlPolicy", "AccessControlList/Grant/Permission", "FULL_CONTROL"),
    "notification": ("NotificationConfiguration", None, None),
    "logging": ("BucketLoggingStatus", None, None),
    "accelerate": ("AccelerateConfiguration", None, None),
    "requestPayment": ("RequestPaymentConfiguration", "Payer", "BucketOwner"),
    "ownershipControls": ("OwnershipControls", "Rule/ObjectOwnership", "BucketOwnerEnforced"),
}


def send(raw, method, path, query, text):
    body = text.encode()
    return raw.request(method, path, query, headers={"Content-MD5": sums.content_md5(body)}, body=body)


def refused_write(response, name):
    refused(response, *WRITE_ANSWERS.get(name, ("NotImplemented", 501)))


@pytest.mark.parametrize("name", BUCKET_WRITES)
def test_write_of_a_bucket_setting(raw, bucket, name):
    refused_write(send(raw, "PUT", f"/{bucket}", f"{name}=", BUCKET_WRITES[name]), name)


@pytest.mark.parametrize("name", UNSET)
def test_read_of_a_setting_that_was_never_set(raw, bucket, name):
    refused(raw.request("GET", f"/{bucket}", f"{name}="), UNSET[name], 404)
    refused(raw.request("GET", f"/{bucket}-missing", f"{name}="), "NoSuchBucket", 404)


@pytest.mark.parametrize("name", DEFAULTS)
def test_read_of_a_setting_with_a_default(raw, bucket, name):
    root, path, value = DEFAULTS[name]
    response = raw.request("GET", f"/{bucket}", f"{name}=")
    assert response.status == 200 and response.xml().tag == root, response
    if path:
        assert response.xml().findtext(path) == value, response
    else:
        assert len(response.xml()) == 0, response


@pytest.mark.parametrize("name", [n for n in UNSET if n != "object-lock"] + ["ownershipControls"])
def test_delete_of_a_bucket_setting(raw, s3, bucket, name):
    """In particular, it must not delete the bucket."""
    assert raw.request("DELETE", f"/{bucket}", f"{name}=").status == 204
    s3.head_bucket(Bucket=bucket)
    refused(raw.request("DELETE", f"/{bucket}-missing", f"{name}="), "NoSuchBucket", 404)


@pytest.mark.parametrize("name", ["analytics", "metrics", "inventory", "intelligent-tiering"])
def test_configurations_with_an_id(raw, bucket, name):
    for method in ("PUT", "DELETE"):
        refused(raw.request(method, f"/{bucket}", f"id=one&{name}="), "NotImplemented", 501)
    refused(raw.request("GET", f"/{bucket}", f"id=one&{name}="), "NoSuchConfiguration", 404)
    listed = raw.request("GET", f"/{bucket}", f"{name}=")
    assert listed.status == 200 and listed.xml().findtext("IsTruncated") == "false", listed
    refused(raw.request("GET", f"/{bucket}-missing", f"{name}="), "NoSuchBucket", 404)


@pytest.mark.parametrize("method, query", OBJECT_WRITES, ids=[query for _, query in OBJECT_WRITES])
def test_write_of_an_object_subresource(raw, s3, bucket, key, method, query):
    """The request must not be executed as PUT and overwrite the object with XML."""
    s3.put_object(Bucket=bucket, Key=key, Body=b"body")
    refused_write(send(raw, method, f"/{bucket}/{key}", query, OBJECT_WRITES[method, query]), query)
    assert body_of(s3, bucket, key) == b"body"


@pytest.mark.parametrize("query", ["legal-hold=", "retention=", "torrent="])
def test_read_of_an_object_subresource(raw, s3, bucket, key, query):
    s3.put_object(Bucket=bucket, Key=key, Body=b"body")
    refused_write(raw.request("GET", f"/{bucket}/{key}", query), query)


def test_acl_of_an_object_is_that_of_the_owner(s3, bucket, key):
    s3.put_object(Bucket=bucket, Key=key, Body=b"body")
    grants = s3.get_object_acl(Bucket=bucket, Key=key)["Grants"]
    assert [grant["Permission"] for grant in grants] == ["FULL_CONTROL"]
    with s3_error("NoSuchKey", 404):
        s3.get_object_acl(Bucket=bucket, Key=key + "-missing")


@pytest.mark.parametrize("acl", ["private", "bucket-owner-full-control"])
def test_acl_of_the_owner_may_be_set(s3, bucket, key, acl):
    s3.put_object(Bucket=bucket, Key=key, Body=b"body")
    s3.put_bucket_acl(Bucket=bucket, ACL=acl)
    s3.put_object_acl(Bucket=bucket, Key=key, ACL=acl)
    with s3_error("AccessControlListNotSupported", 400):
        s3.put_object_acl(Bucket=bucket, Key=key, ACL="public-read")
    with s3_error("NoSuchKey", 404):
        s3.put_object_acl(Bucket=bucket, Key=key + "-missing", ACL=acl)


def test_post_that_is_no_form(anonymous, bucket):
    response = anonymous.request("POST", f"/{bucket}", headers={"Content-Type": "application/json"}, body=b"{}")
    refused(response, "PreconditionFailed", 412)
    assert response.xml().findtext("Condition") == "Bucket POST must be of the enclosure-type multipart/form-data"


def test_preflight(anonymous, bucket):
    ask = {"Origin": "https://a.example", "Access-Control-Request-Method": "PUT"}
    refused(anonymous.request("OPTIONS", f"/{bucket}/k", headers=ask), "AccessForbidden", 403)
    refused(anonymous.request("OPTIONS", f"/{bucket}-missing/k", headers=ask), "NoSuchBucket", 404)
    refused(anonymous.request("OPTIONS", f"/{bucket}/k", headers={**ask, "Origin": ""}), "BadRequest", 400)
    refused(anonymous.request("OPTIONS", f"/{bucket}/k", headers={**ask, "Access-Control-Request-Method": "x"}), "BadRequest", 400)


def test_form_upload(anonymous, s3, bucket, key):
    boundary = "x1x2x3"
    parts = {"key": key, "file": "body"}
    body = "".join(f'--{boundary}\r\nContent-Disposition: form-data; name="{n}"\r\n\r\n{v}\r\n' for n, v in parts.items())
    body = f"{body}--{boundary}--\r\n".encode()
    response = anonymous.request("POST", f"/{bucket}", headers={"Content-Type": f"multipart/form-data; boundary={boundary}"}, body=body)
    assert (response.status, response.code) in ((501, "NotImplemented"), (403, "AccessDenied")), response
    absent(s3, bucket, key)


# Headers that request unsupported features: either honoured and confirmed in the response, or rejected.

HEADERS = {
    "x-amz-server-side-encryption": ("AES256", "x-amz-server-side-encryption"),
    "x-amz-server-side-encryption-aws-kms-key-id": ("key", "x-amz-server-side-encryption"),
    "x-amz-server-side-encryption-customer-algorithm": ("AES256", "x-amz-server-side-encryption-customer-algorithm"),
    "x-amz-object-lock-mode": ("GOVERNANCE", None),
    "x-amz-object-lock-legal-hold": ("ON", None),
    "x-amz-website-redirect-location": ("/elsewhere", None),
    "x-amz-write-offset-bytes": ("4", None),
    "x-amz-acl": ("public-read", None),
    "x-amz-grant-read": ('uri="http://acs.amazonaws.com/groups/global/AllUsers"', None),
    "x-amz-storage-class": ("GLACIER", None),
}


@pytest.mark.parametrize("name", HEADERS)
def test_header_is_honoured_or_rejected(raw, s3, bucket, key, name):
    value, echo = HEADERS[name]
    response = raw.request("PUT", f"/{bucket}/{key}", headers={name: value}, body=b"x")
    if response.status == 200:
        head = raw.request("HEAD", f"/{bucket}/{key}")
        assert (echo and response.header(echo)) or head.header(name) == value, f"{name} was ignored"
    else:
        assert response.status in (400, 501), response
        assert response.code
        absent(s3, bucket, key)


def test_private_acl_is_accepted(raw, bucket, key):
    """rclone and others send it with every PUT."""
    assert raw.request("PUT", f"/{bucket}/{key}", headers={"x-amz-acl": "private"}, body=b"x").status == 200


def test_bucket_with_object_lock(raw, temporary_names):
    name = temporary_names()
    response = raw.request("PUT", f"/{name}", headers={"x-amz-bucket-object-lock-enabled": "true"})
    refused(response, "NotImplemented", 501)
    assert raw.request("HEAD", f"/{name}").status == 404


@pytest.mark.parametrize("query", ["nonsense=", "x-id=PutObject", "foo=bar&baz"])
def test_unknown_parameters_are_ignored(raw, s3, bucket, key, query):
    """As in AWS; SDKs add `x-id` to every request."""
    assert raw.request("PUT", f"/{bucket}/{key}", query, body=b"x").status == 200
    assert body_of(s3, bucket, key) == b"x"
