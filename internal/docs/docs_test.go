package docs

import "testing"

func TestURL(t *testing.T) {
	const home = "https://github.com/cloud-map-mcs/cloud-map-mcs-controller"
	for tag, want := range map[string]string{
		"":           home + "/blob/main/docs/iam.md#hosted-zones",
		"v0.2.0":     home + "/blob/v0.2.0/docs/iam.md#hosted-zones",
		"v0.2.0-rc1": home + "/blob/v0.2.0-rc1/docs/iam.md#hosted-zones",
	} {
		Tag = tag
		t.Cleanup(func() { Tag = "" })
		if got := URL("iam.md#hosted-zones"); got != want {
			t.Errorf("with tag %q the URL is %s, want %s", tag, got, want)
		}
	}
}
