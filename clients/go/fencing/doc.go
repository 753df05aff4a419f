// Package fencing acquires locks of a fencing gateway, renews them, and puts their fencing token on every write.
//
//	client, err := fencing.New("https://gateway.internal:8443", fencing.WithAPIKey(key))
//	if err != nil {
//		return err
//	}
//	defer client.Close()
//
//	err = client.Lock(ctx, "job/42", func(ctx context.Context, lock *fencing.Lock) error {
//		request, err := http.NewRequestWithContext(ctx, http.MethodPatch, client.URL("/v1/tables/jobs?id=eq.42"), body)
//		if err != nil {
//			return err
//		}
//		response, err := lock.HTTPClient().Do(request)
//		if err != nil {
//			return err
//		}
//		defer response.Body.Close()
//		return fencing.CheckResponse(response)
//	})
//
// The context of the work is cancelled when the lock is lost, and its cause is then a [*LockLost]. The gateway refuses
// the writes of an overtaken holder in any case, whatever was paused and however late they arrive.
package fencing
