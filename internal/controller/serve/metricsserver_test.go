package serve

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestLimitConcurrency_RefusesExcess: requests beyond the limit are refused, and admitted again when others have ended.
func TestLimitConcurrency_RefusesExcess(t *testing.T) {
	started, end := make(chan struct{}), make(chan struct{})
	handler := limitConcurrency(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		started <- struct{}{}
		<-end
	}), 2)
	get := func() int {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
		return w.Code
	}
	codes := make(chan int)
	for range 2 {
		go func() { codes <- get() }()
		<-started
	}
	if got := get(); got != http.StatusServiceUnavailable {
		t.Errorf("the third concurrent request gets %d, want 503", got)
	}
	for range 2 {
		end <- struct{}{}
		if got := <-codes; got != http.StatusOK {
			t.Errorf("an admitted request gets %d, want 200", got)
		}
	}
	go func() { codes <- get() }()
	<-started
	end <- struct{}{}
	if got := <-codes; got != http.StatusOK {
		t.Errorf("a request after the others gets %d, want 200", got)
	}
}
