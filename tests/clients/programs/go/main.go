// The AWS SDK for Go v2 and minio-go against operations that take longer than the server waits before it sends the head of its
// response. Usage: go-clients aws|minio BUCKET. The bucket has the object "source". Operations on keys that contain "fails" must
// fail, and all others must succeed. Prints nothing but failures.
package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/minio/minio-go/v7"
	miniocredentials "github.com/minio/minio-go/v7/pkg/credentials"
)

// An operation on one key, which returns the entity tag of its result.
type operation func(ctx context.Context, bucket, key string) (string, error)

func awsOperations(endpoint, region, id, secret string) map[string]operation {
	client := s3.New(s3.Options{
		BaseEndpoint:     aws.String(endpoint),
		Region:           region,
		Credentials:      credentials.NewStaticCredentialsProvider(id, secret, ""),
		UsePathStyle:     true,
		RetryMaxAttempts: 1,
	})
	upload := func(ctx context.Context, bucket, key string) (*string, error) {
		created, err := client.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: &bucket, Key: &key})
		if err != nil {
			return nil, err
		}
		return created.UploadId, nil
	}
	return map[string]operation{
		"CopyObject": func(ctx context.Context, bucket, key string) (string, error) {
			copied, err := client.CopyObject(ctx, &s3.CopyObjectInput{
				Bucket: &bucket, Key: &key, CopySource: aws.String(bucket + "/source"),
			})
			if err != nil || copied.CopyObjectResult == nil {
				return "", err
			}
			return aws.ToString(copied.CopyObjectResult.ETag), nil
		},
		"UploadPartCopy": func(ctx context.Context, bucket, key string) (string, error) {
			id, err := upload(ctx, bucket, key)
			if err != nil {
				return "", err
			}
			copied, err := client.UploadPartCopy(ctx, &s3.UploadPartCopyInput{
				Bucket: &bucket, Key: &key, UploadId: id, PartNumber: aws.Int32(1), CopySource: aws.String(bucket + "/source"),
			})
			if err != nil || copied.CopyPartResult == nil {
				return "", err
			}
			return aws.ToString(copied.CopyPartResult.ETag), nil
		},
		"CompleteMultipartUpload": func(ctx context.Context, bucket, key string) (string, error) {
			id, err := upload(ctx, bucket, key)
			if err != nil {
				return "", err
			}
			part, err := client.UploadPart(ctx, &s3.UploadPartInput{
				Bucket: &bucket, Key: &key, UploadId: id, PartNumber: aws.Int32(1), Body: strings.NewReader("part"),
			})
			if err != nil {
				return "", err
			}
			parts := []types.CompletedPart{{ETag: part.ETag, PartNumber: aws.Int32(1), ChecksumCRC32: part.ChecksumCRC32}}
			completed, err := client.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
				Bucket: &bucket, Key: &key, UploadId: id, MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
			})
			if err != nil {
				return "", err
			}
			return aws.ToString(completed.ETag), nil
		},
	}
}

func minioOperations(endpoint, region, id, secret string) map[string]operation {
	address, err := url.Parse(endpoint)
	if err != nil {
		exit(err)
	}
	client, err := minio.NewCore(address.Host, &minio.Options{
		Creds:      miniocredentials.NewStaticV4(id, secret, ""),
		Secure:     address.Scheme == "https",
		Region:     region,
		MaxRetries: 1,
	})
	if err != nil {
		exit(err)
	}
	upload := func(ctx context.Context, bucket, key string) (string, error) {
		return client.NewMultipartUpload(ctx, bucket, key, minio.PutObjectOptions{})
	}
	return map[string]operation{
		"CopyObject": func(ctx context.Context, bucket, key string) (string, error) {
			copied, err := client.CopyObject(ctx, bucket, "source", bucket, key, nil, minio.CopySrcOptions{}, minio.PutObjectOptions{})
			return copied.ETag, err
		},
		"UploadPartCopy": func(ctx context.Context, bucket, key string) (string, error) {
			id, err := upload(ctx, bucket, key)
			if err != nil {
				return "", err
			}
			part, err := client.CopyObjectPart(ctx, bucket, "source", bucket, key, id, 1, 0, -1, nil)
			return part.ETag, err
		},
		"CompleteMultipartUpload": func(ctx context.Context, bucket, key string) (string, error) {
			id, err := upload(ctx, bucket, key)
			if err != nil {
				return "", err
			}
			part, err := client.PutObjectPart(ctx, bucket, key, id, 1, strings.NewReader("part"), 4, minio.PutObjectPartOptions{})
			if err != nil {
				return "", err
			}
			parts := []minio.CompletePart{{PartNumber: 1, ETag: part.ETag}}
			completed, err := client.CompleteMultipartUpload(ctx, bucket, key, id, parts, minio.PutObjectOptions{})
			return completed.ETag, err
		},
	}
}

func exit(err error) {
	fmt.Println(err)
	os.Exit(2)
}

func main() {
	sdk, bucket := os.Args[1], os.Args[2]
	endpoint, region := os.Getenv("TW_ENDPOINT"), os.Getenv("TW_REGION")
	id, secret := os.Getenv("TW_ACCESS_KEY"), os.Getenv("TW_SECRET_KEY")
	operations := map[string]func(_, _, _, _ string) map[string]operation{"aws": awsOperations, "minio": minioOperations}[sdk]
	var running sync.WaitGroup
	failures := make(chan string, 100)
	for name, run := range operations(endpoint, region, id, secret) {
		for _, outcome := range []string{"succeeds", "fails"} {
			running.Go(func() {
				etag, err := run(context.Background(), bucket, sdk+name+outcome)
				switch {
				case outcome == "fails" && err == nil:
					failures <- name + " reports no error"
				case outcome == "succeeds" && (err != nil || strings.Trim(etag, `"`) == ""):
					failures <- fmt.Sprintf("%s: ETag %q, error %v", name, etag, err)
				}
			})
		}
	}
	running.Wait()
	close(failures)
	failed := false
	for failure := range failures {
		fmt.Println(failure)
		failed = true
	}
	if failed {
		os.Exit(1)
	}
}
