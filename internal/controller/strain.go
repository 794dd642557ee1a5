package controller

import (
	"net/http"
	"sync"
	"time"
)

// strain tells from this controller's own writes how much more slowly the API server writes now than it can. The lease is
// renewed every two seconds, so the best is known soon, and is of a time when little was going on.
type strain struct {
	mu           sync.Mutex
	best, recent time.Duration
}

// measure is a rest.Config's WrapTransport: it lets next do the requests and measures those that write.
func (s *strain) measure(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		if req.Method == http.MethodGet || req.URL.Query().Has("dryRun") {
			return next.RoundTrip(req)
		}
		began := time.Now()
		resp, err := next.RoundTrip(req)
		if err == nil && resp.StatusCode < http.StatusMultipleChoices { // what is refused is so before it is written
			s.wrote(time.Since(began))
		}
		return resp, err
	})
}

// wrote takes note of how long a write took. The recent time is that of the last handful.
func (s *strain) wrote(took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.best == 0 {
		s.best, s.recent = took, took
	}
	s.best = min(s.best, took)
	s.recent += (took - s.recent) / 4
}

// factor is how many times as long as at best a write takes now; 1 while nothing was written.
func (s *strain) factor() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.best == 0 {
		return 1
	}
	return float64(s.recent) / float64(s.best)
}

// roundTripper is a function that is an http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
