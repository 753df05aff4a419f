// Package awss3 makes S3 clients of the AWS SDK for Go v2 write under a lock.
//
//	objects := s3.NewFromConfig(config, func(o *s3.Options) {
//		o.BaseEndpoint = aws.String(client.URL(""))
//		o.UsePathStyle = true
//	}, awss3.Under(lock))
//
// The headers of the lock are added before each attempt is signed, because the gateway believes no unsigned header.
package awss3

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"fencing-gateway.example/fencing-gateway.git/clients/go/fencing"
)

// Under returns an option for a client, or for one of its calls, whose endpoint is the gateway.
//
//   - Nothing is sent under a lock that is lost: the error is then a [*fencing.LockLost].
//   - If the fence refuses a call, or one of several deletions, the error is a [*fencing.Stale], and the lock is lost.
//   - Presigned URLs carry the lock in their query.
//   - Requests to other hosts carry nothing of the lock.
func Under(lock *fencing.Lock) func(*s3.Options) {
	return func(options *s3.Options) {
		options.APIOptions = append(options.APIOptions, func(stack *middleware.Stack) error { return attach(stack, lock) })
	}
}

func attach(stack *middleware.Stack, lock *fencing.Lock) error {
	at, isPresigned := "Signing", false
	if _, isThere := stack.Finalize.Get("PresignHTTPRequest"); isThere {
		at, isPresigned = "PresignHTTPRequest", true
	}
	present := middleware.FinalizeMiddlewareFunc("FencingToken", func(
		ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler,
	) (middleware.FinalizeOutput, middleware.Metadata, error) {
		request, isHTTP := in.Request.(*smithyhttp.Request)
		if !isHTTP {
			return middleware.FinalizeOutput{}, middleware.Metadata{}, fmt.Errorf("awss3: no HTTP request: %T", in.Request)
		}
		if err := lock.Check(); err != nil {
			return middleware.FinalizeOutput{}, middleware.Metadata{}, err
		}
		show(request, lock, isPresigned)
		return next.HandleFinalize(ctx, in)
	})
	if err := stack.Finalize.Insert(present, at, middleware.Before); err != nil {
		return fmt.Errorf("awss3: the stack signs nothing: %w", err)
	}
	if isPresigned {
		return nil
	}
	// The last one sees the answer first, before the SDK has read its body.
	look := middleware.DeserializeMiddlewareFunc("FencingRefusal", func(
		ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler,
	) (middleware.DeserializeOutput, middleware.Metadata, error) {
		out, metadata, err := next.HandleDeserialize(ctx, in)
		response, isHTTP := out.RawResponse.(*smithyhttp.Response)
		if err == nil && isHTTP && response.StatusCode >= 300 {
			err = refusalIn(response.Response, lock)
		}
		return out, metadata, err
	})
	if err := stack.Deserialize.Add(look, middleware.After); err != nil {
		return err
	}
	deletions := middleware.InitializeMiddlewareFunc("FencingRefusals", func(
		ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler,
	) (middleware.InitializeOutput, middleware.Metadata, error) {
		out, metadata, err := next.HandleInitialize(ctx, in)
		if deleted, isDeletion := out.Result.(*s3.DeleteObjectsOutput); err == nil && isDeletion {
			for _, each := range deleted.Errors {
				if refusal := note(fencing.NewRefusal(
					http.StatusPreconditionFailed, text(each.Code), text(each.Message), "", nil,
				), lock); refusal != nil {
					err = errors.Join(err, refusal)
				}
			}
		}
		return out, metadata, err
	})
	return stack.Initialize.Add(deletions, middleware.Before)
}

// show adds the lock to a request to the gateway, and takes it away from any other.
func show(request *smithyhttp.Request, lock *fencing.Lock, isPresigned bool) {
	isOurs, header := isGateway(request.URL, lock), lock.Header()
	for _, name := range []string{"Fencing-Token", "Fencing-Resource", "Fencing-Holder", "Fencing-Sequencer"} {
		value := header.Get(name)
		request.Header.Del(name)
		switch {
		case !isOurs || value == "":
		case isPresigned:
			// The user of the URL sends none of our headers.
			query := request.URL.Query()
			query.Set(strings.ToLower(name), value)
			request.URL.RawQuery = query.Encode()
		default:
			request.Header.Set(name, value)
		}
	}
}

// isGateway reports whether a URL is the gateway's. A bucket may stand in front of the gateway's name.
func isGateway(address *url.URL, lock *fencing.Lock) bool {
	gateway, err := url.Parse(lock.Client().URL("/"))
	if err != nil || !strings.EqualFold(address.Scheme, gateway.Scheme) || portOf(address) != portOf(gateway) {
		return false
	}
	host, ours := strings.ToLower(address.Hostname()), strings.ToLower(gateway.Hostname())
	return host == ours || strings.HasSuffix(host, "."+ours)
}

func portOf(address *url.URL) string {
	if port := address.Port(); port != "" {
		return port
	}
	return map[string]string{"http": "80", "https": "443"}[strings.ToLower(address.Scheme)]
}

// refusalIn returns the refusal of the fence in an answer, and nil for any other answer.
func refusalIn(response *http.Response, lock *fencing.Lock) error {
	var refusal fencing.Error
	if errors.As(fencing.CheckResponse(response), &refusal) {
		return note(refusal, lock)
	}
	return nil
}

func note(refusal fencing.Error, lock *fencing.Lock) error {
	if stale, isStale := refusal.(*fencing.Stale); isStale {
		lock.Overtaken(stale)
		return stale
	}
	if code := refusal.Detail().Code; code == "token-used" || code == "UsedFencingToken" {
		return refusal
	}
	return nil
}

func text(value *string) string {
	if value == nil {
		return ""
	}
	return *value
}
