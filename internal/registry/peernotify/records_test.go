package peernotify

import (
	"bytes"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// recordsOf returns records with some bytes.
func recordsOf(size int) Records {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(rand.IntN(256))
	}
	return Records{ClusterSet: "set1", From: "cls1", Generation: 1_795_212_000_123, Data: data}
}

// received returns the data of records in datagrams, in the given order, for the receiver.
func received(t *testing.T, datagrams ...[]byte) (data []byte, isComplete bool) {
	t.Helper()
	a := newAssembler()
	for _, datagram := range datagrams {
		sealed, err := decodeRecords(datagram)
		if err != nil {
			t.Fatal(err)
		}
		c, ok := sealed.open(receiver.with(sealed.key).records)
		if !ok {
			t.Fatal("a datagram does not open")
		}
		if data, isComplete = a.add(start, sealed.from, c); isComplete {
			return data, true
		}
	}
	return nil, false
}

func TestRecordsRoundTrip(t *testing.T) {
	for _, size := range []int{1, 500, chunkSize, chunkSize + 1, 5 * chunkSize, MaxRecords - 1, MaxRecords} {
		records := recordsOf(size)
		records.ClusterSet, records.From, records.Generation = strings.Repeat("s", 63), strings.Repeat("c", 63), math.MaxInt64
		datagrams := sender.EncodeRecords(records, receiver.Public())
		if want := (size + chunkSize - 1) / chunkSize; len(datagrams) != want {
			t.Errorf("%d bytes make %d datagrams, want %d", size, len(datagrams), want)
		}
		for _, datagram := range datagrams {
			if !isRecords(datagram) || len(datagram) > maxRecordsDatagram {
				t.Errorf("a datagram of %d bytes, want at most %d", len(datagram), maxRecordsDatagram)
			}
			if size >= chunkSize && bytes.Contains(datagram, records.Data[:16]) {
				t.Error("the datagram shows the records")
			}
		}
		rand.Shuffle(len(datagrams), func(i, j int) { datagrams[i], datagrams[j] = datagrams[j], datagrams[i] })
		if data, ok := received(t, datagrams...); !ok || !bytes.Equal(data, records.Data) {
			t.Errorf("%d bytes arrive as %d, complete: %v", size, len(data), ok)
		}
		if len(datagrams) > 1 {
			repeated := append([][]byte{datagrams[0], datagrams[0]}, datagrams[:len(datagrams)-1]...)
			if _, ok := received(t, repeated...); ok {
				t.Errorf("%d bytes are complete without their last part", size)
			}
		}
	}
	for name, records := range map[string]Records{"no data": recordsOf(0), "too large": recordsOf(MaxRecords + 1)} {
		if datagrams := sender.EncodeRecords(records, receiver.Public()); datagrams != nil {
			t.Errorf("%s: %d datagrams, want none", name, len(datagrams))
		}
	}
	if datagrams := sender.EncodeRecords(recordsOf(1), strings.Repeat("A", keyLength)); datagrams != nil {
		t.Error("they are sealed with a key that everybody has")
	}
}

func TestDecodeRecordsRefuses(t *testing.T) {
	good := sender.EncodeRecords(recordsOf(100), receiver.Public())[0]
	edit := func(old, replacement string) []byte {
		return bytes.Replace(bytes.Clone(good), []byte(old), []byte(replacement), 1)
	}
	flipped := bytes.Clone(good)
	flipped[len(flipped)-1] ^= 1
	third := keysOf("cls3")
	for name, tc := range map[string]struct {
		datagram    []byte
		isMalformed bool
	}{
		"no bytes":             {nil, true},
		"garbage":              {[]byte("\x00\xff garbage"), true},
		"another version":      {edit("/1", "/2"), true},
		"no chunk":             {[]byte("mcs-records/1 set1 cls1 " + key), true},
		"no cluster ID":        {edit("cls1", "Cls_1"), true},
		"no clusterset ID":     {edit("set1", ""), true},
		"no key":               {edit(key, "key"), true},
		"an empty chunk":       {[]byte("mcs-records/1 set1 cls1 " + key + " "), false},
		"another sender":       {edit("cls1", "cls2"), false},
		"another clusterset":   {edit("set1", "set2"), false},
		"another key":          {edit(key, third.Public()), false},
		"a changed bit":        {flipped, false},
		"a cut chunk":          {good[:len(good)-1], false},
		"a longer chunk":       {append(bytes.Clone(good), 0), false},
		"for another receiver": {sender.EncodeRecords(recordsOf(100), third.Public())[0], false},
		"of a third party":     {bytes.Replace(third.EncodeRecords(recordsOf(100), receiver.Public())[0], []byte(third.Public()), []byte(key), 1), false},
		"its own, reflected":   {receiver.EncodeRecords(recordsOf(100), sender.Public())[0], false},
	} {
		t.Run(name, func(t *testing.T) {
			sealed, err := decodeRecords(tc.datagram)
			if (err != nil) != tc.isMalformed {
				t.Fatalf("error %v, want one: %v", err, tc.isMalformed)
			}
			if err != nil {
				return
			}
			if c, ok := sealed.open(receiver.with(sealed.key).records); ok {
				t.Errorf("it opens as %+v", c)
			}
		})
	}
}

func TestDecodeChunk(t *testing.T) {
	whole := make([]byte, chunkSize)
	for name, tc := range map[string]struct {
		chunk chunk
		want  bool
	}{
		"alone":                    {chunk{count: 1, data: []byte("x")}, true},
		"first of two":             {chunk{count: 2, data: whole}, true},
		"last of two":              {chunk{number: 1, count: 2, data: []byte("x")}, true},
		"last of the most":         {chunk{number: maxChunks - 1, count: maxChunks, data: whole}, true},
		"a short one of two":       {chunk{count: 2, data: []byte("x")}, false},
		"no data":                  {chunk{count: 1}, false},
		"none of none":             {chunk{data: []byte("x")}, false},
		"a number beyond them":     {chunk{number: 2, count: 2, data: []byte("x")}, false},
		"too many":                 {chunk{count: maxChunks + 1, data: whole}, false},
		"too much":                 {chunk{count: 1, data: append([]byte("x"), whole...)}, false},
		"the last of too many":     {chunk{number: 255, count: 0, data: whole}, false},
		"the generation of before": {chunk{generation: math.MinInt64, count: 1, data: []byte("x")}, true},
	} {
		got, ok := decodeChunk(tc.chunk.encode())
		if ok != tc.want || ok && !bytes.Equal(got.encode(), tc.chunk.encode()) {
			t.Errorf("%s: %v, want %v", name, ok, tc.want)
		}
	}
}

// FuzzDecodeRecords checks that no datagram makes a receiver fail, and that only datagrams that a
// member made open.
func FuzzDecodeRecords(f *testing.F) {
	f.Add(sender.EncodeRecords(recordsOf(100), receiver.Public())[0], false)
	f.Add(chunk{count: 1, data: []byte("x")}.encode(), true)
	f.Add([]byte("mcs-records/1 a b "+key+" x"), false)
	f.Fuzz(func(t *testing.T, data []byte, isChunk bool) {
		if isChunk {
			if c, ok := decodeChunk(data); ok && !bytes.Equal(c.encode(), data) {
				t.Errorf("%x is %x when it is encoded again", data, c.encode())
			}
			return
		}
		sealed, err := decodeRecords(data)
		if err != nil || sealed.key != key {
			return
		}
		if c, ok := sealed.open(receiver.with(key).records); ok && int(c.count) > maxChunks {
			t.Errorf("it has %d parts", c.count)
		}
	})
}

// chunksOf returns the parts of a records.
func chunksOf(generation int64, count uint8) (chunks []chunk) {
	for i := range count {
		chunks = append(chunks, chunk{generation: generation, number: i, count: count, data: bytes.Repeat([]byte{i}, chunkSize)})
	}
	return chunks
}

func TestAssembler(t *testing.T) {
	add := func(a *assembler, now time.Time, from string, chunks ...chunk) (complete int) {
		for _, c := range chunks {
			if _, ok := a.add(now, from, c); ok {
				complete++
			}
		}
		return complete
	}
	t.Run("records and clusters do not mix", func(t *testing.T) {
		a := newAssembler()
		one, other, later := chunksOf(1, 3), chunksOf(1, 4), chunksOf(2, 3)
		for i := range one {
			want := 0
			if i == 2 {
				want = 3
			}
			if got := add(a, start, "cls1", one[i], other[i], later[i]) + add(a, start, "cls2", one[i]); got != want {
				t.Errorf("after part %d %d are complete, want %d", i, got, want)
			}
		}
		if add(a, start, "cls1", other[3]); a.size != 0 || len(a.bySender) != 0 {
			t.Errorf("%d bytes of %d clusters are left, want none", a.size, len(a.bySender))
		}
	})
	t.Run("the oldest of too many goes", func(t *testing.T) {
		a := newAssembler()
		for generation := range int64(maxAssemblies + 1) {
			add(a, start, "cls1", chunksOf(generation, 2)[0])
		}
		if add(a, start, "cls1", chunksOf(0, 2)[1]) > 0 || add(a, start, "cls1", chunksOf(maxAssemblies, 2)[1]) != 1 {
			t.Error("the first is complete, or the last one is not")
		}
	})
	t.Run("incomplete records go", func(t *testing.T) {
		a := newAssembler()
		add(a, start, "cls1", chunksOf(1, 2)[0])
		add(a, start.Add(2*assembleWithin), "cls2", chunksOf(1, 2)[0])
		if len(a.bySender) != 1 || a.size != chunkSize {
			t.Errorf("%d bytes of %d clusters are left, want those of the last one", a.size, len(a.bySender))
		}
	})
	t.Run("their size is bounded", func(t *testing.T) {
		a := newAssembler()
		for i := range 2 * maxAssembled / MaxRecords {
			add(a, start, strings.Repeat("c", i+1), chunksOf(1, maxChunks)[1:]...)
		}
		if a.size > maxAssembled+MaxRecords {
			t.Errorf("%d bytes are kept, want at most %d", a.size, maxAssembled)
		}
		if add(a, start, "another", chunksOf(1, 1)...) != 1 {
			t.Error("one part alone is refused")
		}
	})
}
