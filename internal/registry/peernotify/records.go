package peernotify

import (
	"bytes"
	"crypto/cipher"
	"encoding/binary"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// Records are records of a cluster as it has written them to the registry: its member record, and
// what that announces. The cluster has signed them; a Transport does not look into them.
type Records struct {
	// ClusterSet and From are IDs, DNS labels both.
	ClusterSet, From string
	// Generation is that of the member record.
	Generation int64
	// Data has at most MaxRecords bytes.
	Data []byte
}

const (
	// recordsVersion is the first word of a datagram with a part of records. A receiver that does
	// not know it drops the datagram, and reads the registry.
	recordsVersion = "mcs-records/1"
	// maxRecordsDatagram is the largest datagram with a part of records, in bytes: the smallest MTU
	// of IPv6, 1,280, less the headers of IPv6, 40, and UDP, 8. No router has to fragment it.
	maxRecordsDatagram = 1280 - 40 - 8
	// chunkSize is the largest part, in bytes. Beside it a datagram has at most 224: the version,
	// 13, two IDs of 63, a key of 43, four spaces, a nonce of 12, a code of 16, and the numbers of
	// chunkHeader.
	chunkSize = 1000
	// chunkHeader is the size of the numbers before a part: the generation, 8, the number of the
	// part and the count of parts, 1 each.
	chunkHeader = 10
	// maxChunks bounds the datagrams of one change. Larger ones are read from the registry only:
	// the more datagrams there are, the likelier it is that one gets lost.
	maxChunks = 16
	// MaxRecords is the largest size of records that are sent, in bytes: some 6,000 endpoints, at
	// 2.3 bytes each with a random address. A service with 10 endpoints takes 600 bytes.
	MaxRecords = maxChunks * chunkSize
)

// chunk is a part of records.
type chunk struct {
	generation    int64
	number, count uint8
	data          []byte
}

// datagrams returns the datagrams of records for a receiver with which their sender shares a
// sealing key, none if they are too large. Each has words that end with a space, and a chunk that
// is sealed with AES-256-GCM, which authenticates the words too:
//
//	mcs-records/1 <clusterset> <from> <key> <nonce><ciphertext><tag>
func (r Records) datagrams(key string, sealing cipher.AEAD) (datagrams [][]byte) {
	if len(r.Data) == 0 || len(r.Data) > MaxRecords {
		return nil
	}
	head := []byte(recordsVersion + " " + r.ClusterSet + " " + r.From + " " + key + " ")
	count := (len(r.Data) + chunkSize - 1) / chunkSize
	for i := range count {
		c := chunk{generation: r.Generation, number: uint8(i), count: uint8(count), data: r.Data[i*chunkSize : min((i+1)*chunkSize, len(r.Data))]}
		datagrams = append(datagrams, sealing.Seal(bytes.Clone(head), nil, c.encode(), head))
	}
	return datagrams
}

func (c chunk) encode() []byte {
	text := binary.BigEndian.AppendUint64(make([]byte, 0, chunkHeader+len(c.data)), uint64(c.generation))
	return append(append(text, c.number, c.count), c.data...)
}

// decodeChunk is the inverse of chunk.encode; ok is false for other bytes.
func decodeChunk(text []byte) (c chunk, ok bool) {
	if len(text) <= chunkHeader || len(text) > chunkHeader+chunkSize {
		return c, false
	}
	c = chunk{generation: int64(binary.BigEndian.Uint64(text)), number: text[8], count: text[9], data: text[chunkHeader:]}
	isLast := c.number+1 == c.count
	return c, c.count <= maxChunks && c.number < c.count && (isLast || len(c.data) == chunkSize)
}

// sealedChunk is a datagram with a part of records of an untrusted sender.
type sealedChunk struct {
	clusterSet, from, key string
	head, sealed          []byte
}

// isRecords reports whether a datagram may have a part of records.
func isRecords(datagram []byte) bool { return bytes.HasPrefix(datagram, []byte(recordsVersion+" ")) }

// decodeRecords reads the words of a datagram with a part of records. The error is ErrMalformed.
func decodeRecords(datagram []byte) (s sealedChunk, err error) {
	words := bytes.SplitN(datagram, []byte(" "), 5)
	if len(words) != 5 || string(words[0]) != recordsVersion {
		return s, ErrMalformed
	}
	s = sealedChunk{clusterSet: string(words[1]), from: string(words[2]), key: string(words[3]), sealed: words[4]}
	s.head = datagram[:len(datagram)-len(s.sealed)]
	if mcs.ValidateClusterID(s.clusterSet) != nil || mcs.ValidateClusterID(s.from) != nil || !isKey(s.key) {
		return sealedChunk{}, ErrMalformed
	}
	return s, nil
}

// open returns the chunk; ok is false if the sender does not have the key, or has sealed something
// else.
func (s sealedChunk) open(sealing cipher.AEAD) (c chunk, ok bool) {
	text, err := sealing.Open(nil, nil, s.sealed, s.head)
	if err != nil {
		return c, false
	}
	return decodeChunk(text)
}

const (
	// maxAssemblies is the number of incomplete records that are kept of a sender. It writes them
	// one after the other, so that their parts hardly mix.
	maxAssemblies = 4
	// maxAssembled bounds the size of all incomplete records, in bytes.
	maxAssembled = 16 << 20
	// assembleWithin is the time for which incomplete records are kept. Their datagrams are sent at
	// once.
	assembleWithin = 2 * time.Second
)

// assembler joins the parts of records. It is not safe for concurrent use.
type assembler struct {
	// bySender are the incomplete records of each cluster, the oldest first.
	bySender map[string][]*assembly
	size     int
	sweptAt  time.Time
}

// assembly are incomplete records.
type assembly struct {
	chunk // the first one that arrived, without data
	began time.Time
	parts [maxChunks][]byte
	have  uint8
	size  int
}

func newAssembler() *assembler { return &assembler{bySender: map[string][]*assembly{}} }

// add adds a part of records of a cluster, and returns their data if they are complete.
func (a *assembler) add(now time.Time, from string, c chunk) (data []byte, isComplete bool) {
	if c.count == 1 {
		return c.data, true
	}
	found := a.find(now, from, c)
	if found == nil || found.parts[c.number] != nil {
		return nil, false
	}
	found.parts[c.number] = c.data
	found.have++
	found.size += len(c.data)
	a.size += len(c.data)
	if found.have < found.count {
		return nil, false
	}
	a.drop(from, found)
	return bytes.Join(found.parts[:found.count], nil), true
}

// find returns the records that a part belongs to, new ones if it is the first part. It is nil if
// there is no room for others.
func (a *assembler) find(now time.Time, from string, c chunk) *assembly {
	for _, found := range a.bySender[from] {
		if found.generation == c.generation && found.count == c.count {
			return found
		}
	}
	a.sweep(now)
	if all := a.bySender[from]; len(all) >= maxAssemblies {
		a.drop(from, all[0])
	}
	if a.size >= maxAssembled {
		return nil
	}
	created := &assembly{chunk: chunk{generation: c.generation, count: c.count}, began: now}
	a.bySender[from] = append(a.bySender[from], created)
	return created
}

// sweep drops the records that have been incomplete for too long.
func (a *assembler) sweep(now time.Time) {
	if now.Sub(a.sweptAt) < assembleWithin {
		return
	}
	a.sweptAt = now
	for from, all := range a.bySender {
		for len(all) > 0 && now.Sub(all[0].began) >= assembleWithin {
			a.drop(from, all[0])
			all = a.bySender[from]
		}
	}
}

// drop removes incomplete records.
func (a *assembler) drop(from string, dropped *assembly) {
	left := a.bySender[from][:0]
	for _, kept := range a.bySender[from] {
		if kept != dropped {
			left = append(left, kept)
		}
	}
	a.size -= dropped.size
	if a.bySender[from] = left; len(left) == 0 {
		delete(a.bySender, from)
	}
}
