package etcd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// author is the cluster that signs the values below one prefix.
type author struct {
	clusterSetID, clusterID, uid string
	key                          trust.Key
}

// member returns the statement of a member record.
func (a author) member(generation int64, record []byte) trust.Statement {
	return trust.Statement{
		ClusterSetID: a.clusterSetID, ClusterID: a.clusterID, UID: a.uid, Kind: trust.KindMember, Generation: generation, Content: record,
	}
}

// export returns the statement of an export.
func (a author) export(key mcs.Key, generation int64, data []byte) trust.Statement {
	return trust.Statement{
		ClusterSetID: a.clusterSetID, ClusterID: a.clusterID, UID: a.uid, Kind: trust.KindExport, Name: key.String(), Generation: generation, Content: data,
	}
}

// signedMember is the value of a cluster's key member.
type signedMember struct {
	// Key is the cluster's public key, and Succession its signature with the previous key, if there
	// was one.
	Key        string `json:"key"`
	Succession string `json:"succession,omitempty"`
	// UID is the UID of namespace kube-system. Generation is the time of the last change of the
	// exports, in milliseconds.
	UID        string `json:"uid"`
	Generation int64  `json:"generation"`
	// Signature covers UID, Generation and Record, which is a memberRecord.
	Signature string          `json:"signature"`
	Record    json.RawMessage `json:"record"`
}

// signMember encodes and signs a member record.
func signMember(signer *trust.Signer, r memberRecord) ([]byte, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	a := author{clusterSetID: r.ClusterSetID, clusterID: r.ClusterID, uid: r.UID}
	return json.Marshal(signedMember{
		Key: signer.Key().String(), Succession: signer.Succession(r.ClusterSetID, r.ClusterID), UID: r.UID, Generation: r.Generation,
		Signature: signer.Sign(a.member(r.Generation, data)), Record: data,
	})
}

// openMember parses the value of a cluster's key member, and verifies its signature with the key
// that it presents. It does not decide whether that key is the cluster's.
func openMember(value []byte, clusterSetID, clusterID string) (signedMember, author, error) {
	var m signedMember
	a := author{clusterSetID: clusterSetID, clusterID: clusterID}
	if len(value) > maxMemberBytes {
		return m, a, fmt.Errorf("it takes %d bytes, more than the %d that are allowed", len(value), maxMemberBytes)
	}
	if err := json.Unmarshal(value, &m); err != nil {
		return m, a, fmt.Errorf("parsing: %w", err)
	}
	var err error
	if a.key, err = trust.ParseKey(m.Key); err != nil {
		return m, a, err
	}
	a.uid = m.UID
	return m, a, a.key.Verify(a.member(m.Generation, m.Record), m.Signature)
}

// signExport returns the value of an export's key: its generation and signature as text, and its
// content.
func signExport(signer *trust.Signer, a author, key mcs.Key, generation int64, data []byte) []byte {
	value := strconv.AppendInt(nil, generation, 10)
	value = append(value, ' ')
	value = append(value, signer.Sign(a.export(key, generation, data))...)
	value = append(value, '\n')
	return append(value, data...)
}

// errUnsigned means that a value does not begin as signExport makes it.
var errUnsigned = errors.New("it is not signed")

// maxHeaderBytes bounds the header of an export: a generation, a signature and two separators.
const maxHeaderBytes = 20 + trust.SignatureLength + 2

// openExport verifies the value of an export's key, and returns its generation and content.
func openExport(value []byte, a author, key mcs.Key) (generation int64, data []byte, err error) {
	header, data, found := cutHeader(value)
	if !found {
		return 0, nil, errUnsigned
	}
	number, signature, found := bytes.Cut(header, []byte(" "))
	generation, err = strconv.ParseInt(string(number), 10, 64)
	if !found || err != nil || generation <= 0 {
		return 0, nil, errUnsigned
	}
	return generation, data, a.key.Verify(a.export(key, generation, data), string(signature))
}

// cutHeader returns the header and the content of the value of an export's key; found is false if
// it has none.
func cutHeader(value []byte) (header, data []byte, found bool) {
	end := bytes.IndexByte(value[:min(len(value), maxHeaderBytes)], '\n')
	if end < 0 {
		return nil, nil, false
	}
	return value[:end], value[end+1:], true
}
