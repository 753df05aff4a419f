package integration
import (
 _ "github.com/aws/aws-sdk-go-v2/service/s3"
 _ "github.com/aws/aws-sdk-go-v2/credentials"
 _ "github.com/jackc/pgx/v5/pgxpool"
)
