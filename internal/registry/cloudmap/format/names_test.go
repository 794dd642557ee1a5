package format

import "testing"

func TestMembersServiceName(t *testing.T) {
	for n, want := range []string{1: "members", 2: "members-2", 4: "members-4"} {
		if want == "" {
			continue
		}
		if got := MembersServiceName(n); got != want {
			t.Errorf("service %d is %q, want %q", n, got, want)
		}
		if got, ok := ParseMembersService(want); got != n || !ok {
			t.Errorf("%q is %d, %v; want %d", want, got, ok, n)
		}
	}
	for _, name := range []string{"", "members-1", "members-5", "members-02", "Members", "catalog.members"} {
		if n, ok := ParseMembersService(name); ok {
			t.Errorf("%q is service %d", name, n)
		}
	}
}
