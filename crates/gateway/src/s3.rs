//! The S3 operations, on `s3s` as router and XML codec.
