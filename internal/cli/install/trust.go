package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// trustOptions are the flags of trust.
type trustOptions struct {
	clusterID, key string
	yes            bool
	wait           time.Duration
}

func trustCommand(s *session.Session) *cobra.Command {
	var o trustOptions
	cmd := &cobra.Command{
		Use:   "trust CLUSTER",
		Short: "Accept the new key of a cluster that was rebuilt or has lost its key",
		Long: "Makes a public key that of a cluster, in the cluster of each context. Records of the cluster count if they are signed with that key, and\n" +
			"with no other one. The key is --key, or that of the cluster itself if one of the contexts is its own, or the one that was refused: any\n" +
			"member of the clusterset may have written that one, so compare it with the cluster's own before you confirm. Imports stay until the next\n" +
			"record. A cluster in --trusted-keys has the key in that file.",
		Example: "  kubectl mcs trust cls3 --context cls1,cls2,cls3",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := mcs.ValidateClusterID(args[0]); err != nil {
				return session.Usagef("reading the ID of the cluster: %w", err)
			}
			if _, err := trust.ParseKey(o.key); o.key != "" && err != nil {
				return session.Usagef("reading --key: %w", err)
			}
			o.clusterID = args[0]
			clusters, err := s.Clusters()
			if err != nil {
				return err
			}
			return runTrust(cmd.Context(), s, clusters, o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.key, "key", "", "the public key, as kubectl mcs get clusters -o yaml shows it in the cluster itself")
	flags.BoolVarP(&o.yes, "yes", "y", false, "do not ask for confirmation; needs --key or the context of the cluster itself")
	flags.DurationVar(&o.wait, "wait", forgetWait, "how long to wait until the controllers trust the key; 0 does not wait")
	return cmd
}

// keyFacts are what the controller of one context knows about the key of the cluster.
type keyFacts struct {
	clusterSetID string
	// isOwn is set in the cluster itself.
	isOwn bool
	// pinned is the key of the cluster, and refused one that was refused; "" without one.
	pinned, refused string
}

func runTrust(ctx context.Context, s *session.Session, clusters []*session.Cluster, o trustOptions) error {
	facts, errs := make([]keyFacts, len(clusters)), make([]error, len(clusters))
	for i, k := range clusters {
		facts[i], errs[i] = readKeyFacts(ctx, s, k, o.clusterID)
	}
	if err := session.JoinErrors(clusters, errs); err != nil {
		return err
	}
	key, isVerified, err := chooseKey(facts, o)
	if err != nil {
		return err
	}
	for i, k := range clusters {
		if !facts[i].isOwn {
			s.Printf("%s: key of cluster %s: %s, refused: %s", k.Context, o.clusterID, cmp.Or(facts[i].pinned, "none"), cmp.Or(facts[i].refused, "none"))
		}
	}
	s.Printf("key to trust: %s", key)
	if !isVerified {
		s.Printf("Any member of the clusterset may have written this key. Compare it with the key of cluster %s that kubectl mcs get clusters -o yaml shows in that cluster.", o.clusterID)
	}
	if !o.yes && !s.Confirm("Trust this key of cluster %s, and no other one, in these clusters?", o.clusterID) {
		return errors.New("not confirmed: nothing was changed")
	}
	for i, k := range clusters {
		if !facts[i].isOwn {
			errs[i] = trustKey(ctx, s, k, facts[i].clusterSetID, key, o)
		}
	}
	return session.JoinErrors(clusters, errs)
}

// readKeyFacts returns what the controller of a context knows about the key of the cluster with the
// ID.
func readKeyFacts(ctx context.Context, s *session.Session, k *session.Cluster, clusterID string) (keyFacts, error) {
	st, err := readMember(ctx, s, k, "trusting a key of cluster "+clusterID)
	if err != nil {
		return keyFacts{}, err
	}
	facts := keyFacts{clusterSetID: st.Identity.ClusterSetID, isOwn: st.Identity.ClusterID == clusterID}
	if i := slices.IndexFunc(st.Members, func(m status.Member) bool { return m.ClusterID == clusterID }); i >= 0 {
		facts.pinned, facts.refused = st.Members[i].Key, st.Members[i].RefusedKey
	}
	return facts, nil
}

// shownKeys returns the keys of the cluster itself, none without its context, the keys that the
// others have refused, and the number of the others.
func shownKeys(facts []keyFacts) (own, refused []string, others int) {
	for _, f := range facts {
		if f.isOwn {
			own = append(own, f.pinned)
			continue
		}
		others++
		refused = append(refused, f.refused)
	}
	return distinct(own), distinct(refused), others
}

// distinct returns the values without "", each once.
func distinct(values []string) (unique []string) {
	for _, v := range values {
		if v != "" && !slices.Contains(unique, v) {
			unique = append(unique, v)
		}
	}
	return unique
}

// chooseKey returns the key to trust. isVerified is set if the user or the cluster itself has named
// it, not only the registry.
func chooseKey(facts []keyFacts, o trustOptions) (key string, isVerified bool, err error) {
	owns, refused, others := shownKeys(facts)
	if err := checkContexts(facts, owns, others, o.clusterID); err != nil {
		return "", false, err
	}
	own := strings.Join(owns, "")
	switch {
	case o.key != "" && own != "" && o.key != own:
		return "", false, fmt.Errorf("cluster %s signs its records with key %s, and not with --key", o.clusterID, own)
	case o.key != "" || own != "":
		return cmp.Or(o.key, own), true, nil
	case len(refused) == 0:
		return "", false, fmt.Errorf("no record of cluster %s was refused for its key: name the key with --key, or the context of that cluster too", o.clusterID)
	case len(refused) > 1:
		return "", false, fmt.Errorf("several keys of cluster %s were refused (%s): name one with --key, or the context of that cluster too", o.clusterID, strings.Join(refused, ", "))
	case o.yes:
		return "", false, fmt.Errorf("any member of the clusterset may have written key %s: with --yes, name the key with --key, or the context of cluster %s too", refused[0], o.clusterID)
	}
	return refused[0], false, nil
}

// checkContexts returns an error if the contexts cannot agree about a key of the cluster. owns are
// the keys of the contexts that have its ID, and others is the number of the other contexts.
func checkContexts(facts []keyFacts, owns []string, others int, clusterID string) error {
	var clusterSets []string
	for _, f := range facts {
		clusterSets = append(clusterSets, f.clusterSetID)
	}
	clusterSets = distinct(clusterSets)
	switch {
	case len(clusterSets) > 1:
		return fmt.Errorf("the contexts are of several clustersets (%s): name those of one", strings.Join(clusterSets, ", "))
	case len(owns) > 1:
		return fmt.Errorf("several clusters have the ID %s, with different keys (%s): name the context of one, and give the others another ID", clusterID, strings.Join(owns, ", "))
	case others == 0:
		return fmt.Errorf("cluster %s trusts itself: name the contexts of the other clusters of the clusterset too", clusterID)
	}
	return nil
}

// trustKey requests that the controller trusts the key, and waits until its status shows that it
// does.
func trustKey(ctx context.Context, s *session.Session, k *session.Cluster, clusterSetID, key string, o trustOptions) error {
	handled, err := sendRequest(ctx, s, k, names.TrustKey(clusterSetID, o.clusterID), key+" "+requestedAt(k, "trust"), "trusts this key of cluster "+o.clusterID, o.wait)
	if !handled {
		return err
	}
	facts, err := readKeyFacts(ctx, s, k, o.clusterID)
	if err != nil {
		return err
	}
	switch facts.pinned {
	case key:
		s.Printf("%s: trusts this key of cluster %s", k.Context, o.clusterID)
		return nil
	case "":
		return fmt.Errorf("the controller has read the request, but knows no cluster %s, so that it shows no key: its log has the result", o.clusterID)
	}
	return fmt.Errorf("the controller does not trust this key of cluster %s, but %s: its log has the reason, such as another key in --trusted-keys", o.clusterID, facts.pinned)
}
