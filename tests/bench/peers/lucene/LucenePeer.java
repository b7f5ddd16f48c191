import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import java.util.logging.Level;
import java.util.logging.Logger;
import java.util.stream.Stream;
import org.apache.lucene.codecs.Codec;
import org.apache.lucene.codecs.FilterCodec;
import org.apache.lucene.codecs.PostingsFormat;
import org.apache.lucene.codecs.bloom.BloomFilteringPostingsFormat;
import org.apache.lucene.codecs.perfield.PerFieldPostingsFormat;
import org.apache.lucene.document.Document;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.StringField;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.IndexWriter;
import org.apache.lucene.index.IndexWriterConfig;
import org.apache.lucene.index.LeafReaderContext;
import org.apache.lucene.index.LogDocMergePolicy;
import org.apache.lucene.index.NoMergePolicy;
import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.index.SerialMergeScheduler;
import org.apache.lucene.index.TermsEnum;
import org.apache.lucene.search.CollectorManager;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.ScoreMode;
import org.apache.lucene.search.SimpleCollector;
import org.apache.lucene.search.TermInSetQuery;
import org.apache.lucene.store.Directory;
import org.apache.lucene.store.MMapDirectory;
import org.apache.lucene.util.BytesRef;
import org.apache.lucene.util.Version;

/**
 * Looks keys up in a Lucene index, at the word of the process at the other end of the pipe. It
 * makes the keys itself, by the functions of key_sets.cc and bench_table.cc, so that none crosses
 * the pipe. A command is a line, and so is its answer: "OK ..." or "ERROR message". The first line
 * is "READY lucene-version java-version".
 *
 * <pre>
 *   CHECKSUM shape salt keys                         -> OK checksum
 *   BUILD shape default|bloom folder rows,rows,...   -> OK bytes     (segments, in this order)
 *   ROUND seek|set hit-percent seed batches          -> OK ns found sum-of-ids
 * </pre>
 */
public final class LucenePeer {
  private static final String FIELD = "id";
  private static final int BATCH_KEYS = 4000;
  private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();
  // Held, since a logger that nobody holds is made anew, with its level forgotten.
  private static final Logger LUCENE_LOGGER = Logger.getLogger("org.apache.lucene");

  public static void main(String[] args) throws IOException {
    // It warns of vectors that are off; looking keys up uses none.
    LUCENE_LOGGER.setLevel(Level.SEVERE);
    PrintStream out = new PrintStream(System.out, true, StandardCharsets.US_ASCII);
    BufferedReader in =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    out.println("READY " + Version.LATEST + " " + System.getProperty("java.version"));
    LucenePeer peer = new LucenePeer();
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      try {
        out.println("OK " + peer.answer(line.split(" ")));
      } catch (IOException | RuntimeException e) {
        e.printStackTrace();
        out.println("ERROR " + e);
      }
    }
  }

  private KeyShape shape;
  private long rows;
  private OpenIndex index;

  private String answer(String[] words) throws IOException {
    switch (words[0]) {
      case "CHECKSUM":
        return Long.toHexString(
            checksum(
                KeyShape.valueOf(words[1]), Long.parseLong(words[2]), Long.parseLong(words[3])));
      case "BUILD":
        shape = KeyShape.valueOf(words[1]);
        long[] sizes = Arrays.stream(words[4].split(",")).mapToLong(Long::parseLong).toArray();
        rows = Arrays.stream(sizes).sum();
        if (index != null) index.close();
        index = null;
        Path folder = Path.of(words[3]);
        long bytes = buildIndex(folder, codec(words[2].equals("bloom")), sizes);
        index = new OpenIndex(folder, sizes.length);
        return Long.toString(bytes);
      case "ROUND":
        return round(
            words[1].equals("set"), Integer.parseInt(words[2]), Long.parseUnsignedLong(words[3]),
            Integer.parseInt(words[4]));
      default:
        throw new IllegalArgumentException("no such command: " + words[0]);
    }
  }

  private long checksum(KeyShape of, long salt, long keys) {
    byte[] key = new byte[of.bytes];
    long sum = 0xCBF29CE484222325L;
    for (long i = 0; i < keys; i++) {
      of.make(i, salt, key, 0);
      for (byte b : key) sum = (sum ^ (b & 0xFF)) * 0x100000001B3L;
    }
    return sum;
  }

  // --- building ---------------------------------------------------------------------------------

  /** The default codec, with its postings format for the key wrapped by a Bloom filter if asked. */
  private static Codec codec(boolean bloom) {
    Codec base = Codec.getDefault();
    if (!bloom) return base;
    PostingsFormat plain =
        ((PerFieldPostingsFormat) base.postingsFormat()).getPostingsFormatForField(FIELD);
    PostingsFormat filtered = new BloomFilteringPostingsFormat(plain);
    PostingsFormat perField =
        new PerFieldPostingsFormat() {
          @Override
          public PostingsFormat getPostingsFormatForField(String field) {
            return filtered;
          }
        };
    // Under the name of the default codec, which readers find; the field names its format.
    return new FilterCodec(base.getName(), base) {
      @Override
      public PostingsFormat postingsFormat() {
        return perField;
      }
    };
  }

  private long buildIndex(Path folder, Codec codec, long[] sizes) throws IOException {
    IndexWriterConfig config =
        new IndexWriterConfig()
            .setCodec(codec)
            .setUseCompoundFile(false)
            .setMergePolicy(NoMergePolicy.INSTANCE);
    Path part = folder.resolve("part");
    try (Directory directory = new MMapDirectory(folder.resolve("index"));
        IndexWriter writer = new IndexWriter(directory, config)) {
      long begin = 0;
      for (long size : sizes) {
        // In a folder of its own even rows that outgrow the writer's memory become one segment,
        // which is then taken as it is.
        try (Directory partDirectory = new MMapDirectory(part)) {
          buildSegment(partDirectory, codec, begin, begin + size);
          writer.addIndexes(partDirectory);
        }
        deleteFolder(part);
        begin += size;
      }
      writer.commit();
    }
    try (Stream<Path> files = Files.list(folder.resolve("index"))) {
      return files.mapToLong(file -> file.toFile().length()).sum();
    }
  }

  /** Rows [begin, end) as one segment, in order: a row's id is its document's number plus begin. */
  private void buildSegment(Directory directory, Codec codec, long begin, long end)
      throws IOException {
    // Merges neighbours, and so keeps the order.
    LogDocMergePolicy inOrder = new LogDocMergePolicy();
    inOrder.setNoCFSRatio(0);
    IndexWriterConfig config =
        new IndexWriterConfig()
            .setCodec(codec)
            .setUseCompoundFile(false)
            .setRAMBufferSizeMB(1024)
            .setMergeScheduler(new SerialMergeScheduler())
            .setMergePolicy(inOrder);
    try (IndexWriter writer = new IndexWriter(directory, config)) {
      byte[] key = new byte[shape.bytes];
      StringField field = new StringField(FIELD, new BytesRef(key), Field.Store.NO);
      Document document = new Document();
      document.add(field);
      for (long i = begin; i < end; i++) {
        shape.make(i, 0, key, 0);
        writer.addDocument(document);
      }
      writer.forceMerge(1);
    }
  }

  private static void deleteFolder(Path folder) throws IOException {
    List<Path> paths;
    try (Stream<Path> walk = Files.walk(folder)) {
      paths = walk.sorted(Comparator.reverseOrder()).toList();
    }
    for (Path path : paths) Files.delete(path);
  }

  // --- looking up -------------------------------------------------------------------------------

  /** An index with all its pages touched, and what look-ups of a thread keep between keys. */
  private static final class OpenIndex {
    final Directory directory;
    final DirectoryReader reader;
    final IndexSearcher searcher;
    // By segment, in the index's order: here the largest first, so that most keys are found early.
    final TermsEnum[] terms;
    final PostingsEnum[] postings;
    final int[] docBases;

    OpenIndex(Path folder, int segments) throws IOException {
      MMapDirectory mapped = new MMapDirectory(folder.resolve("index"));
      mapped.setPreload(MMapDirectory.ALL_FILES);
      directory = mapped;
      reader = DirectoryReader.open(directory);
      searcher = new IndexSearcher(reader);
      searcher.setQueryCache(null);
      List<LeafReaderContext> leaves = reader.leaves();
      if (leaves.size() != segments) {
        throw new IllegalStateException(leaves.size() + " segments instead of " + segments);
      }
      terms = new TermsEnum[segments];
      postings = new PostingsEnum[segments];
      docBases = new int[segments];
      for (LeafReaderContext leaf : leaves) {
        terms[leaf.ord] = leaf.reader().terms(FIELD).iterator();
        docBases[leaf.ord] = leaf.docBase;
      }
    }

    void close() throws IOException {
      reader.close();
      directory.close();
    }
  }

  /** What was found. A row's id is the number of its document. */
  private static final class Answers {
    long found;
    long idSum;

    void add(int doc) {
      found++;
      idSum += doc;
    }
  }

  private String round(boolean asSet, int hitPercent, long seed, int batches) throws IOException {
    byte[] bytes = new byte[BATCH_KEYS * shape.bytes];
    BytesRef[] keys = new BytesRef[BATCH_KEYS];
    for (int i = 0; i < BATCH_KEYS; i++) {
      keys[i] = new BytesRef(bytes, i * shape.bytes, shape.bytes);
    }
    Answers answers = new Answers();
    long state = seed;
    long elapsed = 0;
    for (int b = 0; b < batches; b++) {
      for (int i = 0; i < BATCH_KEYS; i++) {
        long random = KeyShape.mix(++state);
        boolean hit = Long.remainderUnsigned(random, 100) < hitPercent;
        shape.make(unsignedMultiplyHigh(random, rows), hit ? 0 : 1, bytes, i * shape.bytes);
      }
      // Of this thread, like that of the other peers, so that other processes' work does not count.
      long begin = THREADS.getCurrentThreadCpuTime();
      if (asSet) {
        lookUpAsSet(keys, answers);
      } else {
        seekOneByOne(keys, answers);
      }
      elapsed += THREADS.getCurrentThreadCpuTime() - begin;
    }
    return elapsed + " " + answers.found + " " + answers.idSum;
  }

  private void seekOneByOne(BytesRef[] keys, Answers answers) throws IOException {
    TermsEnum[] terms = index.terms;
    for (BytesRef key : keys) {
      for (int s = 0; s < terms.length; s++) {
        if (terms[s].seekExact(key)) {
          PostingsEnum docs = terms[s].postings(index.postings[s], PostingsEnum.NONE);
          index.postings[s] = docs;
          answers.add(index.docBases[s] + docs.nextDoc());
          break;
        }
      }
    }
  }

  private void lookUpAsSet(BytesRef[] keys, Answers answers) throws IOException {
    index.searcher.search(
        new TermInSetQuery(FIELD, Arrays.asList(keys)),
        new CollectorManager<AddingCollector, Void>() {
          @Override
          public AddingCollector newCollector() {
            return new AddingCollector(answers);
          }

          @Override
          public Void reduce(Collection<AddingCollector> collectors) {
            return null;
          }
        });
  }

  private static final class AddingCollector extends SimpleCollector {
    private final Answers answers;
    private int docBase;

    AddingCollector(Answers answers) {
      this.answers = answers;
    }

    @Override
    protected void doSetNextReader(LeafReaderContext leaf) {
      docBase = leaf.docBase;
    }

    @Override
    public void collect(int doc) {
      answers.add(docBase + doc);
    }

    @Override
    public ScoreMode scoreMode() {
      return ScoreMode.COMPLETE_NO_SCORES;
    }
  }

  /** As Math.unsignedMultiplyHigh, which Java 17 does not have. */
  private static long unsignedMultiplyHigh(long a, long b) {
    return Math.multiplyHigh(a, b) + ((a >> 63) & b) + ((b >> 63) & a);
  }

  // --- keys -------------------------------------------------------------------------------------

  /** The key shapes of key_sets.h, byte for byte. */
  enum KeyShape {
    seq6(6),
    asin10(10),
    uuid16(16),
    uuid36(36);

    private static final byte[] BASE36 = ascii("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ");
    private static final byte[] HEX = ascii("0123456789abcdef");

    final int bytes;

    KeyShape(int bytes) {
      this.bytes = bytes;
    }

    void make(long index, long salt, byte[] to, int at) {
      switch (this) {
        case seq6:
          putBase36(index + salt * 1_000_000_000, 6, to, at);
          break;
        case asin10:
          to[at] = 'B';
          to[at + 1] = '0';
          putBase36(scatter40(index) + (salt << 40), 8, to, at + 2);
          break;
        case uuid16:
          putLong(firstHalf(index, salt), to, at);
          putLong(secondHalf(index, salt), to, at + 8);
          break;
        case uuid36:
          long first = firstHalf(index, salt);
          long second = secondHalf(index, salt);
          for (int i = 0; i < 16; i++) {
            if (i == 4 || i == 6 || i == 8 || i == 10) to[at++] = '-';
            int b = (int) ((i < 8 ? first >>> (8 * i) : second >>> (8 * (i - 8))) & 0xFF);
            to[at++] = HEX[b >> 4];
            to[at++] = HEX[b & 15];
          }
          break;
      }
    }

    static long mix(long x) {
      x ^= x >>> 30;
      x *= 0xBF58476D1CE4E5B9L;
      x ^= x >>> 27;
      x *= 0x94D049BB133111EBL;
      return x ^ (x >>> 31);
    }

    private static long firstHalf(long index, long salt) {
      return mix(index * 2 + 1 + (salt << 48));
    }

    private static long secondHalf(long index, long salt) {
      return mix(index * 2 + (salt << 48));
    }

    private static long scatter40(long index) {
      long mask = (1L << 40) - 1;
      long x = (index * 0x9E3779B97F4A7C15L) & mask;
      x ^= x >>> 20;
      return (x * 0xD6E8FEB86659FD93L) & mask;
    }

    private static void putBase36(long number, int digits, byte[] to, int at) {
      for (int i = digits - 1; i >= 0; i--, number /= 36) to[at + i] = BASE36[(int) (number % 36)];
    }

    private static void putLong(long value, byte[] to, int at) {
      for (int i = 0; i < 8; i++) to[at + i] = (byte) (value >>> (8 * i));
    }

    private static byte[] ascii(String text) {
      return text.getBytes(StandardCharsets.US_ASCII);
    }
  }
}
