import java.util.HashMap;
import java.util.concurrent.ConcurrentHashMap;

/** A live set of about MIB megabytes: maps of objects, filled by threads, updated, summed. */
public class Big {
    static final class Item {
        final long id;
        final byte[] body;
        long touched;

        Item(long id) {
            this.id = id;
            this.body = new byte[400];
            for (int i = 0; i < body.length; i++) body[i] = (byte) (id * 31 + i);
        }

        long sum() {
            long sum = id + touched;
            for (byte b : body) sum = sum * 31 + b;
            return sum;
        }
    }

    public static void main(String[] args) throws Exception {
        int count = Integer.parseInt(args[0]) * 2000;
        HashMap<Integer, Item> map = new HashMap<>();
        for (int i = 0; i < count; i++) map.put(i, new Item(i));
        ConcurrentHashMap<Integer, Long> sums = new ConcurrentHashMap<>();
        Thread[] threads = new Thread[4];
        for (int t = 0; t < threads.length; t++) {
            int part = t;
            threads[t] = new Thread(() -> {
                long sum = 0;
                for (int i = part; i < count; i += threads.length) {
                    Item item = map.get(i);
                    item.touched += i;
                    sum = sum * 17 + item.sum();
                    byte[] garbage = new byte[200];
                    garbage[i % 200] = 1;
                    sum += garbage[i % 199];
                }
                sums.put(part, sum);
            });
            threads[t].start();
        }
        for (Thread thread : threads) thread.join();
        System.out.println(map.size() + " " + sums);
        for (int i = 0; i < count; i += 3) map.remove(i);
        long total = 0;
        for (Item item : map.values()) total += item.sum();
        System.out.println(map.size() + " " + total);
    }
}
