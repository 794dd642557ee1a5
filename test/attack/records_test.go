package attack

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/peernotify"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// keysOf returns the keys for notifications and records of a cluster.
func (c *cloud) keysOf(id string) *peernotify.Keys {
	c.t.Helper()
	keys, err := peernotify.NewKeys(c.signer(id).Secret("peer notifications"))
	if err != nil {
		c.t.Fatal(err)
	}
	return keys
}

// recordsFor returns records that claim to be of a cluster, signed by a signer: its next member
// record, which announces a page with exports. Each is later than the one before.
func (c *cloud) recordsFor(clusterID string, signer *trust.Signer, exports ...mcs.Export) peernotify.Records {
	c.t.Helper()
	var published []mcs.Export
	for _, exp := range exports {
		published = append(published, registry.Published(exp))
	}
	data, err := record.Encode(published)
	if err != nil {
		c.t.Fatal(err)
	}
	r, page := c.recordOf(clusterID), format.PageOf(exports[0].Key)
	r.Generation, r.Heartbeat = max(r.Generation+1, time.Now().UnixMilli()), max(r.Heartbeat+1, time.Now().UnixMilli())
	r.Pages[page] = format.Digest(data)
	identity := mcs.Identity{ClusterSetID: clusterSet, ClusterID: clusterID, UID: r.UID}
	parts, err := format.SplitPage(identity, signer, page, r.Generation, data)
	if err != nil {
		c.t.Fatal(err)
	}
	packed, err := format.PackRecords(r.Instance(signer), parts)
	if err != nil {
		c.t.Fatal(err)
	}
	return peernotify.Records{ClusterSet: clusterSet, From: clusterID, Generation: r.Generation, Data: packed}
}

// awaitHeartbeat waits for the next heartbeat of a cluster. For some seconds no other record of it
// replaces those that a test sends.
func (c *cloud) awaitHeartbeat(clusterID string) {
	c.t.Helper()
	last := c.recordOf(clusterID).Heartbeat
	until(c.t, time.Minute, "a heartbeat of "+clusterID, func() bool { return c.recordOf(clusterID).Heartbeat != last })
}

// deliver lets datagrams arrive.
func (s *socket) deliver(datagrams [][]byte) {
	for _, datagram := range datagrams {
		s.received <- datagram
	}
	time.Sleep(time.Second)
}

// TestAttack_ForgedRecordsSent: an intruder that is a member sends records of the victim, in
// every combination of sender, seal and signature that it has.
func TestAttack_ForgedRecordsSent(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		udp, _, reader, web := c.startNotifying()
		c.join(intruder, notifying(newSocket(), "10.3.0.1:8479"))
		time.Sleep(30 * time.Second)
		target, forged := c.recordOf(importer).Contact.Key, webExport(victim, 3)
		asVictim := c.recordsFor(victim, c.signer(intruder), forged)
		asIntruder := asVictim
		asIntruder.From = intruder
		for name, datagrams := range map[string][][]byte{
			"in the victim's name":                  c.keysOf(intruder).EncodeRecords(asVictim, target),
			"in the victim's name and with its key": replaceKey(c.keysOf(intruder).EncodeRecords(asVictim, target), c.keysOf(intruder).Public(), c.keysOf(victim).Public()),
			"in its own name":                       c.keysOf(intruder).EncodeRecords(asIntruder, target),
			"sealed by the victim, signed by it":    c.keysOf(victim).EncodeRecords(asVictim, target),
			"garbage":                               {[]byte("mcs-records/1 set1 cls1 x garbage"), make([]byte, 1300)},
		} {
			udp.deliver(datagrams)
			if !reader.sees(web)() || reader.sees(forged)() {
				t.Errorf("%s: the import changes", name)
			}
		}
		// Control: the victim's own records count.
		c.awaitHeartbeat(victim)
		udp.deliver(c.keysOf(victim).EncodeRecords(c.recordsFor(victim, c.signer(victim), forged), target))
		if !reader.sees(forged)() {
			t.Error("the victim's own records do not count")
		}
	})
}

// replaceKey returns datagrams that name another sender's key.
func replaceKey(datagrams [][]byte, old, key string) (replaced [][]byte) {
	for _, datagram := range datagrams {
		replaced = append(replaced, bytes.Replace(datagram, []byte(old), []byte(key), 1))
	}
	return replaced
}

// TestAttack_ReplayedRecordsSent: an attacker on the path keeps datagrams, and sends them again
// after the next changes: the imports stay as they are.
func TestAttack_ReplayedRecordsSent(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		udp, exporter, reader, _ := c.startNotifying()
		target := c.recordOf(importer).Contact.Key
		var recorded [][][]byte
		c.awaitHeartbeat(victim)
		for endpoints := 3; endpoints < 6; endpoints++ {
			exp := webExport(victim, endpoints)
			records := c.recordsFor(victim, c.signer(victim), exp)
			recorded = append(recorded, c.keysOf(victim).EncodeRecords(records, target))
			udp.deliver(recorded[len(recorded)-1])
			if !reader.sees(exp)() { // control
				t.Fatal("records that arrive for the first time do not count")
			}
		}
		last := webExport(victim, 6)
		exporter.publish(last)
		until(t, time.Minute, "the last change is imported", reader.sees(last))
		for range 20 {
			for _, datagrams := range recorded {
				udp.deliver(datagrams)
				if !reader.sees(last)() {
					t.Fatal("an earlier version is imported again")
				}
			}
		}
	})
}

// TestAttack_FloodOfRecords: a member sends records all the time, whole and in parts that never
// become complete. The controller uses as many as it allows each member, and imports the victim's
// changes meanwhile.
func TestAttack_FloodOfRecords(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		udp, exporter, reader, _ := c.startNotifying()
		c.join(intruder, notifying(newSocket(), "10.3.0.1:8479"))
		time.Sleep(30 * time.Second)
		target := c.recordOf(importer).Contact.Key
		keys, signer := c.keysOf(intruder), c.signer(intruder)
		web := webExport(intruder, 1)
		web.Key.Name = "flood"
		counts, changes := 0, 0
		for i := range 600 {
			records := c.recordsFor(intruder, signer, web)
			incomplete := records
			incomplete.Data = bytes.Repeat([]byte{1}, peernotify.MaxRecords)
			before := reader.exportOf(intruder, web.Key)
			for _, datagram := range append(keys.EncodeRecords(records, target), keys.EncodeRecords(incomplete, target)[1:]...) {
				select {
				case udp.received <- datagram:
				default:
				}
			}
			time.Sleep(10 * time.Millisecond)
			if i%60 == 0 {
				changes++
				change := webExport(victim, 2+changes)
				exporter.publish(change)
				until(t, 5*time.Second, fmt.Sprint("change ", changes, " of the victim is imported"), reader.sees(change))
			}
			if after := reader.exportOf(intruder, web.Key); before == nil && after != nil {
				counts++
			}
		}
		if counts == 0 {
			t.Error("no records of the intruder count: the test floods with some that are dropped at once")
		}
	})
}

// TestAttack_ReflectedRecords: a member names the address of another host in its record. Records
// are larger than notifications, and only the cluster that sends from an address gets them
// there.
func TestAttack_ReflectedRecords(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		udp := newSocket()
		exporter := c.join(victim, notifying(udp, "10.1.0.1:8479"))
		c.infiltrate()
		keys := c.keysOf(intruder)
		send := func(contact, from string) int {
			r := c.recordOf(intruder)
			r.Heartbeat += 10_000
			instance := r.Instance(c.signer(intruder))
			instance.Attributes[format.AttrNotify] = contact + " " + keys.Public()
			c.write(c.attacker(), c.members(), format.Sign(instance, c.signer(intruder)))
			time.Sleep(10 * time.Second)
			udp.from = netip.MustParseAddrPort(from)
			udp.deliver([][]byte{keys.Encode(peernotify.Message{ClusterSet: clusterSet, From: intruder, Generation: 1, Sequence: time.Now().UnixNano()}, c.recordOf(victim).Contact.Key)})
			before := udp.recordsTo(netip.MustParseAddrPort(contact))
			exporter.publish(webExport(victim, 1+int(time.Now().Unix()%1000)))
			time.Sleep(3 * time.Second)
			return udp.recordsTo(netip.MustParseAddrPort(contact)) - before
		}
		if n := send("10.9.9.9:8479", "10.3.0.1:8479"); n > 0 {
			t.Errorf("%d datagrams with records were sent to an address that did not send", n)
		}
		// Control: the address that the intruder sends from gets them.
		if n := send("10.3.0.1:8479", "10.3.0.1:8479"); n == 0 {
			t.Error("no records were sent to the address of a member")
		}
	})
}

// TestAttack_ForgedAnswers: a controller was killed, and its next process asks the victim which
// record is the last one. A member answers for it with every key that it has, and an attacker on
// the path with what the victim has answered to the process before. Only the victim's own answer
// makes the first record count like a second one.
func TestAttack_ForgedAnswers(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		udp, exporter, reader, _ := c.startNotifying()
		c.join(intruder, notifying(newSocket(), "10.3.0.1:8479"))
		time.Sleep(30 * time.Second)
		address, target := netip.MustParseAddrPort("10.1.0.1:8479"), c.recordOf(importer).Contact.Key
		answer := func(nonce string) peernotify.Answer {
			return peernotify.Answer{ClusterSet: clusterSet, From: victim, Nonce: nonce}
		}
		before := c.keysOf(victim).EncodeAnswer(answer(udp.nonceTo(address)), target)
		reader.stop(nil)
		changed := webExport(victim, 5)
		exporter.publish(changed)
		time.Sleep(5 * time.Second)

		udp = newSocket()
		reader = c.join(importer, notifying(udp, "10.2.0.1:8479"))
		until(t, time.Second, "the next process asks", func() bool { return udp.nonceTo(address) != "" })
		asIntruder := answer(udp.nonceTo(address))
		asIntruder.From = intruder
		for name, datagram := range map[string][]byte{
			"in the victim's name":                  c.keysOf(intruder).EncodeAnswer(answer(udp.nonceTo(address)), target),
			"in the victim's name and with its key": replaceKey([][]byte{c.keysOf(intruder).EncodeAnswer(answer(udp.nonceTo(address)), target)}, c.keysOf(intruder).Public(), c.keysOf(victim).Public())[0],
			"with the victim's nonce":               c.keysOf(intruder).EncodeAnswer(asIntruder, target),
			"to the process before":                 before,
			"garbage":                               []byte("mcs-answer/1 set1 cls1 x x 1 1 x"),
		} {
			udp.received <- datagram
			if time.Sleep(100 * time.Millisecond); reader.sees(changed)() {
				t.Errorf("%s: the answer counts", name)
			}
		}
		// Control: the victim's own answer counts.
		udp.received <- c.keysOf(victim).EncodeAnswer(answer(udp.nonceTo(address)), target)
		until(t, time.Second, "the change is imported", reader.sees(changed))
	})
}

// TestAttack_ReflectedAnswers: a member asks with the source address of another host, which gets no
// answer unless a pod may have the address.
func TestAttack_ReflectedAnswers(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		udp, _, _, _ := c.startNotifying()
		c.join(intruder, notifying(newSocket(), "10.3.0.1:8479"))
		time.Sleep(30 * time.Second)
		ask := func(from string) int {
			udp.from = netip.MustParseAddrPort(from)
			before := udp.sentTo(udp.from)
			udp.deliver([][]byte{c.keysOf(intruder).EncodeAsk(peernotify.Ask{ClusterSet: clusterSet, From: intruder, Nonce: peernotify.NewNonce()}, c.recordOf(importer).Contact.Key)})
			return udp.sentTo(udp.from) - before
		}
		for _, address := range []string{"169.254.169.254:80", "127.0.0.1:6443", "224.0.0.1:53", "[fd00:ec2::254]:80", "192.0.2.1:53", "8.8.8.8:53"} {
			if n := ask(address); n > 0 {
				t.Errorf("%d answers were sent to %s", n, address)
			}
		}
		// Control: an address of the pod networks gets an answer.
		if n := ask("10.3.0.9:8479"); n != 1 {
			t.Errorf("%d answers were sent to a pod", n)
		}
	})
}
